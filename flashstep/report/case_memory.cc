#include "flashstep/report/case_memory.h"

#include <algorithm>

#include "flashstep/base/text.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/memory.h"
#include "flashstep/model/cost.h"
#include "flashstep/report/units.h"
#include "flashstep/train/cost.h"

namespace flashstep::report {

double total_memory_bytes(const std::string& device) {
  const measure::Machine machine = measure::describe_machine();
  return static_cast<double>(device == "cuda" ? machine.gpus.at(0).memory_bytes
                                              : machine.memory_bytes);
}

double free_memory_bytes(const std::string& device) {
  return device == "cuda" ? total_memory_bytes(device)
                          : static_cast<double>(measure::available_bytes());
}

NeededBytes needed_bytes(const Workload& w) {
  const StateBytes state = state_bytes(static_cast<double>(parameter_count(w.model)),
                                       {.moment = w.moments == "bf16" ? 2.0 : 4.0});
  const PassShape shape = pass_shape(w);
  double saved = 0;
  for (const SavedTensor& tensor : head_saved_tensors(w.model, shape)) saved += tensor.bytes;
  ModelConfig model = w.model;
  if (!has_backward(w)) model.num_layers = 1;  // without a graph one block is there at a time
  KeptBlocks kept{.shape = shape, .recomputed = model.num_layers, .group = w.recompute_group};
  kept.shape.recompute = recompute_by_name(w.recompute);
  if (w.recompute == "none") kept.recomputed = 0;
  if (w.recompute_blocks > 0) kept.recomputed = std::min(w.recompute_blocks, kept.recomputed);
  // When backward begins, or when it comes to the blocks that are recomputed.
  saved += std::max(kept_bytes_in_backward(model, kept, model.num_layers - 1),
                    kept_bytes_in_backward(model, kept, std::max<int64_t>(kept.recomputed - 1, 0)));
  const double least = state.parameters + (has_backward(w) ? state.gradients : 0) +
                       (has_update(w) ? state.optimizer : 0);
  return {least, least + saved};
}

int64_t fitting_layers(const Workload& workload, double available_bytes, double factor) {
  Workload fewer = workload;
  while (--fewer.model.num_layers > 0) {
    if (factor * needed_bytes(fewer).about <= available_bytes) break;
  }
  return fewer.model.num_layers;
}

Outcome too_large(const Workload& workload) {
  const double least = needed_bytes(workload).least, there = total_memory_bytes(workload.device);
  if (least <= there) return {};
  return {Status::kOutOfMemory, str("what lives through a step takes ", fixed(least / kGiB, 1),
                                    " GiB of ", fixed(there / kGiB, 1))};
}

Outcome too_large_for_now(const Workload& workload, double more_bytes) {
  if (workload.device != "cpu") return {};
  const auto there = static_cast<double>(measure::available_bytes());
  const double about = needed_bytes(workload).about + more_bytes;
  if (there == 0 || about <= there) return {};
  return {Status::kOutOfMemory, str("about ", fixed(about / kGiB, 1), " GiB are needed, ",
                                    fixed(there / kGiB, 1), " GiB are there")};
}

}  // namespace flashstep::report
