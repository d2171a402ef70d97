// One training step of any module: forward and backward over the micro-batches, clipping, update.
// The host never waits for the device in it (with a SkippableOptimizer; see TrainStep).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "flashstep/train/clip.h"
#include "flashstep/train/precision.h"
#include "flashstep/train/safetensors.h"

namespace flashstep {
class GradientReducer;
class Group;
enum class Precision {
  kFloat32,
  kBFloat16,  // autocast
  kFloat16,   // autocast and a GradientScaler
};
Precision precision_by_name(const std::string& name);  // "fp32", "bf16", "fp16"; else UserError

// The mean loss of one micro-batch, () and attached to the graph. A pure function of its arguments
// and of the parameters, if a resumed run shall repeat what a run that never stopped would have
// done.
using LossFunction = std::function<torch::Tensor(int64_t step, int64_t micro_step)>;

// Brings what the loss of this micro-batch reads to tensors that stay where they are, and returns
// before the device has it. Called before each LossFunction; in a step that is replayed from a CUDA
// graph in its place (recorded_step.h).
using StageFunction = std::function<void(int64_t step, int64_t micro_step)>;

// Where a parallel recipe takes part. The defaults are those of a single process.
struct ParallelHooks {
  int64_t rank = 0, world_size = 1;
  const Group* group = nullptr;        // null: a single process
  GradientReducer* reducer = nullptr;  // lives as long as the functions below
  // A guard that is held during every backward but the step's last: gradients are then only added
  // up.
  std::function<std::shared_ptr<void>()> no_sync;
  // Before the forward of the step's last micro-batch, whose backward sends gradients.
  std::function<void()> before_last_backward;
  // After the last backward: returns when the gradients are those of the global batch.
  std::function<void()> synchronize_gradients;
  // The gradients that the optimizer will use, to be unscaled and clipped; empty: every
  // parameter's.
  std::function<std::vector<torch::Tensor>()> gradients;
  // The norm over all gradients of the model, wherever its shards are.
  NormFunction norm = global_norm;
  // Replaces a () tensor by its mean over the ranks.
  std::function<void(torch::Tensor&)> average;
  // The greatest over the ranks: all must stop at the same step, and because of the same signal.
  std::function<int64_t(int64_t)> greatest;
  // What decides the order in which gradients are summed, for a checkpoint to keep: the order of
  // parameters in buckets, and these' size. Set before the first step; a size of 0 is none that was
  // kept, and one that the config gives goes before it. Empty functions: nothing does.
  std::function<std::vector<int64_t>()> bucket_order;
  std::function<double()> bucket_megabytes;
  std::function<void(const std::vector<int64_t>& order, double megabytes)> set_bucket_order;

  bool is_main_rank() const { return rank == 0; }
};

struct StepOptions {
  int64_t accumulation_steps = 1;  // micro-batches in a step
  double max_norm = 0;             // gradients are clipped to this global norm; 0: only measured
  Precision precision = Precision::kFloat32;
};

// What one step computed, on the device.
struct StepResult {
  torch::Tensor loss;       // () float32, mean over micro-batches and ranks
  torch::Tensor grad_norm;  // () float32, before clipping
  torch::Tensor skipped;    // () float32, 1 if loss or norm was not finite and nothing was updated
};

class TrainStep {
 public:
  // `parameters` are those that the optimizer updates, `optimizer` and what the functions refer to
  // must outlive it. An optimizer that is no SkippableOptimizer costs one wait for the device per
  // step: the host must know whether to skip.
  TrainStep(std::vector<torch::Tensor> parameters, torch::optim::Optimizer& optimizer,
            LossFunction loss, StepOptions options, ParallelHooks hooks = {},
            StageFunction stage = {});

  // Runs step number `step`, counted from 0. If the loss or any gradient is not finite, parameters
  // and optimizer stay as they are.
  StepResult run(int64_t step);

  // run() in its parts, for who does the rest, or records them: every micro-batch is staged and
  // added, the first one to no gradients, and finished after the last backward.
  void stage(int64_t step, int64_t micro_step);
  torch::Tensor add_micro_batch(int64_t step, int64_t micro_step);  // its share of the loss, ()
  // Gradients become those of the global batch, are clipped and update the parameters. `loss`: (),
  // of the micro-batches.
  // What .grad holds afterwards is clipped or not, as the optimizer does it (train/skippable.h).
  StepResult finish(torch::Tensor loss);

  // What a checkpoint must keep of it: the loss scale, with fp16.
  NamedTensors state() const;
  void load_state(const NamedTensors& state);  // UserError if something is missing

  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  const ParallelHooks& parallel() const { return hooks_; }
  int64_t accumulation_steps() const { return options_.accumulation_steps; }
  bool has_stage() const { return static_cast<bool>(stage_); }
  torch::Device device() const { return device_; }

 private:
  void update(const torch::Tensor& skip, const torch::Tensor& norm,
              const std::vector<torch::Tensor>& gradients);

  std::vector<torch::Tensor> parameters_;
  torch::optim::Optimizer& optimizer_;
  LossFunction loss_;
  StageFunction stage_;  // may be empty
  StepOptions options_;
  ParallelHooks hooks_;
  torch::Device device_;
  std::unique_ptr<GradientScaler> scaler_;
};

}  // namespace flashstep
