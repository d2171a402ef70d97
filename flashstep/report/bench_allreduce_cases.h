// What `flashstep bench allreduce` measures: sums over ranks by size, number of ranks, backend and
// device, and what came of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/report/record.h"

namespace flashstep::report {

// Sizes are in MB = 10^6 bytes.
struct AllreducePlan {
  std::vector<std::pair<std::string, std::string>> transports;  // backend and device
  std::vector<double> megabytes;
  std::vector<int64_t> ranks;
  std::string dtype = "fp32";  // fp32, bf16, fp16
};

std::vector<std::string> allreduce_presets();  // the course's years: "2024", "2025", "2026"
AllreducePlan allreduce_preset(const std::string& name);  // UserError for an unknown one

// All that backends ("gloo", "nccl") and devices ("cpu", "cuda") have in common: NCCL knows no CPU.
// An empty list means every one. UserError when nothing is left.
std::vector<std::pair<std::string, std::string>> transports_of(
    const std::vector<std::string>& backends, const std::vector<std::string>& devices);

struct AllreduceCase {
  std::string backend, device, dtype;
  int64_t ranks = 0, bytes = 0;
  bool operator==(const AllreduceCase&) const = default;
};
std::string describe(const AllreduceCase& c);  // "nccl cuda 4 ranks 100 MB fp32"

// By transport, ranks and size, in this order. UserError for what cannot be measured: fewer than 2
// ranks, a size below one element a rank, sums that are not exact.
std::vector<AllreduceCase> cases_of(const AllreducePlan& plan);

// nccl-tests' definitions (doc/PERFORMANCE.md there): the bytes of one rank's buffer over the time,
// and that times 2 (n - 1) / n, what each rank has to send, and to receive, at least.
double algorithm_bandwidth(const AllreduceCase& c, double seconds);  // bytes/s
double bus_bandwidth(const AllreduceCase& c, double seconds);

Fields key_of(const AllreduceCase& c);  // backend, device, dtype, ranks, size (MB)

}  // namespace flashstep::report
