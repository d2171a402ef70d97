// What the measurements of one process are of: a language model on a device, a batch of random
// tokens, and what is done with them. (Only its description: model_run.h does it.)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashstep/bench/record.h"
#include "flashstep/detail/fields.h"
#include "flashstep/detail/model_config.h"
#include "flashstep/model/cost.h"

namespace flashstep::tools {

struct Workload {
  ModelConfig model = {.size = "small"};  // what is 0 is the named size's; and the attention's name
  int64_t batch_size = 0;                 // rows of model.context_length tokens; 0: the size's
  // "forward": the loss, without a graph for backward; "forward-backward"; "step": and clipping and
  // AdamW, as flashstep train does it.
  std::string mode = "step";
  // "bf16": autocast. On GPUs: "tf32", fp32 whose matrix products round their inputs to 11 bits,
  // and "fp32-split", where they split them into two bf16 (products/product.h).
  std::string precision = "fp32";
  std::string device = "cpu";  // or "cuda": the current GPU
  double max_norm = 1;         // gradients are clipped to it; 0: only measured
  // As train.moments, train.stream, train.recompute, train.recompute_group and
  // train.recompute_blocks.
  std::string moments = "fp32", stream = "auto", recompute = "none";
  int64_t recompute_group = 1, recompute_blocks = 0;
  int64_t seed = 1;  // of weights and tokens
  void visit(FieldVisitor& visitor);
};

std::vector<std::string> workload_modes();       // in the order of their work
std::vector<std::string> workload_precisions();  // fp32, fp32-split, tf32, bf16, bf16-fp8
inline bool is_in_bf16(const std::string& precision) { return precision.starts_with("bf16"); }
bool has_backward(const Workload& workload);
bool has_update(const Workload& workload);

// `names`, with those of 2025's handout, smallest first, in the place of "all".
std::vector<std::string> sizes_named(const std::vector<std::string>& names);
// tiny, mini and base, which CPUs are compared on (vocabulary 4,096; batches of their own), and
// model_size_names() (batch 4).
std::vector<std::string> workload_size_names();
// A size by its name, or as d_model/d_ff/layers/heads ("1600/6400/48/25", vocabulary 10,000). What
// a workload may leave to its size is 0. UserError for others.
ModelConfig model_by_name(const std::string& name);
// The opposite of model_by_name(): "xl", or the four numbers where they are nobody's.
std::string model_name(const ModelConfig& model);

std::string without_slashes(std::string name);  // "1600-6400-48-25", as names of files have it

// With nothing left to the size. UserError for what cannot be: a size, mode, precision or attention
// that is none, tf32 on a CPU, no GPU for cuda.
Workload resolved_workload(const Workload& workload);

// The mode, and what differs from the default: "step, bf16 moments, recompute blocks by 4".
std::string mode_text(const Workload& workload);
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

// How long its parts took, in seconds.
struct StepTimes {
  double forward = 0;
  double backward = 0;  // with several ranks: until every gradient is the mean
  double optimizer = 0;
  double total = 0;
  double waited = 0;  // of backward, with several ranks: when its own work is done
  double lead = 0;    // of the host over the device when the step begins (Replica::run)
  // A value more in the samples "forward", "backward", "optimizer" and "total" that there were.
  void add_to(Record& record, const std::string& prefix = "") const;
};

// Cases that may need more memory than there is: how much there is, and how much they need.

// Of the machine (or this process's container), and of the first GPU.
double total_memory_bytes(const std::string& device);
// What a case may still take. On a GPU all of it: what other programs hold of it, LibTorch does not
// say.
double free_memory_bytes(const std::string& device);

// Bytes that the workload needs at once, by the formulas of model/cost.h and train/cost.h: at
// least, and about (what lives for a moment only is in neither).
struct NeededBytes {
  double least = 0, about = 0;
};
NeededBytes needed_bytes(const Workload& workload);
// Out of memory, and why, where what lives through a step is more than there is.
Outcome too_large(const Workload& workload);
// The same where about what it needs, and `more`, is not free now: on a CPU the kernel would end
// this process. A GPU's allocator says so itself.
Outcome too_large_for_now(const Workload& workload, double more_bytes = 0);
// The most layers, fewer than the workload's, for which `factor` times about that is available; 0:
// not one.
int64_t fitting_layers(const Workload& workload, double available_bytes, double factor = 1);

}  // namespace flashstep::tools
