// Cases that may need more memory than there is: how much there is, and how much they need.
#pragma once

#include <cstdint>
#include <string>

#include "flashstep/report/failure.h"
#include "flashstep/report/workload.h"

namespace flashstep::report {

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

}  // namespace flashstep::report
