// What the measurements of one process are of: a language model on a device, a batch of random
// tokens, and what is done with them.
//
//   Workload workload;
//   workload.model = model_by_name("medium");
//   workload.precision = "bf16";
//   ModelRun run(workload);
//   for (int i = 0; i < 5; ++i) run.pass();   // warm-up
//   const StepTimes times = run.timed_pass();
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

#include "flashstep/base/fields.h"
#include "flashstep/model/cost.h"
#include "flashstep/model/transformer.h"
#include "flashstep/report/step_marks.h"
#include "flashstep/train/adamw.h"
#include "flashstep/train/step.h"

namespace flashstep::report {

// ---- What is measured

struct Workload {
  ModelConfig model = {.size = "small"};  // what is 0 is the named size's; and the attention's name
  int64_t batch_size = 0;                 // rows of model.context_length tokens; 0: the size's
  // "forward": the loss, without a graph for backward; "forward-backward"; "step": and clipping and
  // AdamW, as flashstep train does it.
  std::string mode = "step";
  // "bf16": autocast. "tf32" (GPUs): fp32 whose matrix products round their inputs to 11 bits.
  std::string precision = "fp32";
  std::string device = "cpu";  // or "cuda": the current GPU
  double max_norm = 1;         // gradients are clipped to it; 0: only measured
  int64_t seed = 1;            // of weights and tokens
  void visit(FieldVisitor& visitor);
};

std::vector<std::string> workload_modes();       // in the order of their work
std::vector<std::string> workload_precisions();  // fp32, tf32, bf16
bool has_backward(const Workload& workload);
bool has_update(const Workload& workload);

// The sizes of a handout ("2024", "2025", "2026"), smallest first.
std::vector<std::string> handout_sizes(const std::string& year);

// tiny, mini and base, which CPUs are compared on (vocabulary 4,096; batches of their own), and
// model_size_names() (batch 4).
std::vector<std::string> workload_size_names();
// A size by its name, or as d_model/d_ff/layers/heads ("1600/6400/48/25", vocabulary 10,000). What
// a workload may leave to its size is 0. UserError for others.
ModelConfig model_by_name(const std::string& name);
// What it leaves open filled in by its size, and checked, as resolved() does for named sizes.
ModelConfig resolved_model(const ModelConfig& model);
// The opposite of model_by_name(): "xl", or the four numbers where they are nobody's.
std::string model_name(const ModelConfig& model);

// With nothing left to the size. UserError for what cannot be: a size, mode, precision or attention
// that is none, tf32 on a CPU, no GPU for cuda.
Workload resolved_workload(const Workload& workload);

std::string describe(const Workload& workload);  // "small, batch 4, context 128, bf16, step"

// For the formulas of model/cost.h; and by them the model FLOPs of one pass.
PassShape pass_shape(const Workload& workload);
double pass_flops(const Workload& workload);

// Every combination of the lists, sizes first, resolved.
struct WorkloadAxes {
  std::vector<std::string> sizes = {"small"};  // for model_by_name()
  std::vector<int64_t> contexts = {128};       // 0: the size's own
  std::vector<std::string> precisions = {"fp32"}, attentions = {"auto"}, modes = {"step"};
  // What all have in common. What its model gives overrides the sizes'; its attention does not.
  Workload common = {.model = {}};
};
std::vector<Workload> workloads_of(const WorkloadAxes& axes);

// ---- Measuring it

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

struct StepTimes {  // seconds
  double forward = 0;
  double backward = 0;  // with several ranks: until every gradient is the mean
  double optimizer = 0;
  double total = 0;
};

// While alive, matrix products of float32 tensors on a GPU may use TF32, or not.
class Tf32Switch {
 public:
  explicit Tf32Switch(bool allow) : before_(at::globalContext().allowTF32CuBLAS()) {
    at::globalContext().setAllowTF32CuBLAS(allow);
  }
  ~Tf32Switch() { at::globalContext().setAllowTF32CuBLAS(before_); }
  Tf32Switch(const Tf32Switch&) = delete;
  Tf32Switch& operator=(const Tf32Switch&) = delete;

 private:
  bool before_;
};

// A model ready to compute (make_model). The host does not wait for a GPU unless that is said. It
// opens the ranges "forward", "backward" and "optimizer" (measure/ranges.h).
class ModelRun {
 public:
  // Resolves the workload. c10::OutOfMemoryError (as everything below) where memory is too small.
  explicit ModelRun(const Workload& workload);

  void pass();  // as the mode says, gradients zeroed before
  // The same, with the host waiting before and after. The parts are the device's time (events on a
  // GPU), 0 for what the mode leaves out; the total is the host's clock.
  StepTimes timed_pass();

  // The parts by themselves. The loss has a graph unless the mode is "forward".
  at::Tensor forward();
  void backward(const at::Tensor& loss);
  void update(const at::Tensor& loss);  // clipping and AdamW; nothing if something is not finite

  const Workload& workload() const { return workload_; }
  at::Device device() const { return device_; }
  TransformerImpl& model() { return *model_; }
  train::AdamW& optimizer() { return optimizer_; }  // its state comes with the first update
  const TokenRows& rows() const { return rows_; }

 private:
  void pass(Marks& marks);

  Workload workload_;
  at::Device device_;
  Tf32Switch tf32_;
  Transformer model_;
  TokenRows rows_;
  train::AdamW optimizer_;
  train::TrainStep step_;
};

}  // namespace flashstep::report
