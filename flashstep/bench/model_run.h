// A workload that is done: a model with its weights, its batch and its optimizer; and its memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <c10/core/Device.h>
#include <torch/types.h>

#include "flashstep/bench/timing.h"
#include "flashstep/bench/workload.h"
#include "flashstep/loop.h"
#include "flashstep/model.h"
#include "flashstep/optim.h"
#include "flashstep/products/product.h"
#include "flashstep/train/recorded_step.h"

namespace flashstep::tools {

// Memory of this rank: on a GPU what LibTorch's allocator has given to tensors, on a CPU what the
// process has resident.
double memory_bytes(c10::Device device);
double peak_memory_bytes(c10::Device device);  // since reset_peak_memory()
void reset_peak_memory(c10::Device device);

constexpr double kLearningRate = 1e-4;  // of AdamW: its value costs nothing

struct TokenRows {
  at::Tensor inputs, targets;  // (B, N) int64
};
// Drawn on the host: the same on every device, and LibTorch's own generators are left alone.
TokenRows random_rows(const ModelConfig& model, int64_t batch_size, uint64_t seed,
                      at::Device device);

// Mean cross-entropy of the model on `rows`, (), under the autocast that the precision asks for.
at::Tensor loss_of(TransformerImpl& model, const TokenRows& rows, const std::string& precision);

// "cpu", or "cuda": this process's current GPU.
at::Device current_device(const std::string& type);

// Its weights are drawn from the seed, on a GPU by the GPU: a host draws a billion numbers in
// seconds, a GPU in milliseconds. They are other numbers than on a CPU, of the same distributions,
// and the same on GPUs of one kind.
Transformer make_model(const ModelConfig& config, uint64_t seed, at::Device device);

// While alive, float32 on a GPU is multiplied as a workload's precision says.
class ProductsSwitch {
 public:
  explicit ProductsSwitch(const std::string& precision)
      : tf32_before_(at::globalContext().allowTF32CuBLAS()), before_(float32_products()) {
    at::globalContext().setAllowTF32CuBLAS(precision == "tf32");
    set_float32_products(precision == "fp32-split" ? Float32Products::kSplit
                                                   : Float32Products::kExact);
  }
  ~ProductsSwitch() {
    at::globalContext().setAllowTF32CuBLAS(tf32_before_);
    set_float32_products(before_);
  }
  ProductsSwitch(const ProductsSwitch&) = delete;
  ProductsSwitch& operator=(const ProductsSwitch&) = delete;

 private:
  bool tf32_before_;
  Float32Products before_;
};

// While alive, LibTorch computes as train.deterministic says: equal inputs give equal bits wherever
// it and our kernels can. What it cannot is an error, or, with `warn_only`, a warning.
class Determinism {
 public:
  explicit Determinism(bool wanted, bool warn_only = false);
  ~Determinism();
  Determinism(const Determinism&) = delete;
  Determinism& operator=(const Determinism&) = delete;

 private:
  bool was_, cudnn_was_;
};

// A model ready to compute (make_model). The host does not wait for a GPU unless that is said. It
// opens the ranges "forward", "backward" and "optimizer" (measure/ranges.h).
class ModelRun {
 public:
  // Resolves the workload. c10::OutOfMemoryError (as everything below) where memory is too small.
  explicit ModelRun(const Workload& workload);

  enum class Part { kForward, kBackward, kUpdate };
  // As the mode says, gradients zeroed before. `after` is called when the device has been given a
  // part. The update clips, and is none if something is not finite.
  void pass(const std::function<void(Part)>& after = {});
  // The same, with the host waiting before and after. The parts are the device's time (events on a
  // GPU), 0 for what the mode leaves out; the total is the host's clock.
  StepTimes timed_pass();

  // From now on, until stop_replaying(), timed_replay() is a whole step as flashstep train replays
  // it from a CUDA graph, of which only the total is known. UserError where that cannot be.
  void start_replaying();
  StepTimes timed_replay();
  void stop_replaying() { recorded_.reset(); }

  at::Tensor forward();  // the loss, which has a graph unless the mode is "forward"

  const Workload& workload() const { return workload_; }
  at::Device device() const { return device_; }
  TransformerImpl& model() { return *model_; }
  AdamW& optimizer() { return optimizer_; }  // its state comes with the first update
  const TokenRows& rows() const { return rows_; }

 private:
  at::Tensor loss();

  Workload workload_;
  at::Device device_;
  ProductsSwitch products_;
  Transformer model_;
  TokenRows rows_;
  AdamW optimizer_;
  std::function<void(Part)> after_;  // of the pass that runs; or empty
  TrainStep step_;
  std::unique_ptr<RecordedStep> recorded_;
};

}  // namespace flashstep::tools
