// All-reduce over ranks of this machine, beside the bare library below it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/record.h"
#include "flashstep/bench/task.h"

namespace flashstep::tools {

// What `flashstep bench allreduce` measures: sums over ranks by size, number of ranks, backend and
// device, and what came of it.

using Transport = std::pair<std::string, std::string>;  // backend and device

// Sizes are in MB = 10^6 bytes.
struct AllreducePlan {
  std::vector<Transport> transports;
  std::vector<double> megabytes;
  std::vector<int64_t> ranks;
  std::string dtype = "fp32";  // fp32, bf16, fp16
};

std::vector<std::string> allreduce_presets();  // the course's years: "2024", "2025", "2026"
AllreducePlan allreduce_preset(const std::string& name);

// All that backends ("gloo", "nccl") and devices ("cpu", "cuda") have in common: NCCL knows no CPU.
// An empty list means every one. UserError when nothing is left.
std::vector<Transport> transports_of(const std::vector<std::string>& backends,
                                     const std::vector<std::string>& devices);

struct AllreduceCase {
  std::string backend, device, dtype;
  int64_t ranks = 0, bytes = 0;
  bool operator==(const AllreduceCase&) const = default;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AllreduceCase, backend, device, dtype, ranks, bytes)
std::string describe(const AllreduceCase& c);  // "nccl cuda 4 ranks 100 MB fp32"
Fields key_of(const AllreduceCase& c);         // backend, device, dtype, ranks, size (MB)

// By transport and number of ranks, in this order: one job each, with a case for every size.
// UserError for what cannot be measured: a size below one element a rank, sums that are not exact.
std::vector<std::vector<AllreduceCase>> jobs_of(const AllreducePlan& plan);

// What the links between ranks of one machine carry at most, one way.
struct Link {
  double bytes_per_s;  // a rank's, in one direction
  std::string source;  // "data sheet: ...", or how it was measured
};
using Links = std::map<Transport, Link>;
// NVLink of a GPU by the name that CUDA gives it, as its data sheet promises: none if we have no
// sheet, or it has no NVLink. For Gloo TCP over this machine's loopback, as measure/limits.h has
// it.
Links links_of(const std::vector<Transport>& transports, const std::string& gpu_name);

// What ranks add up, so that every element of the sum is known beforehand and exact: rank r holds
// (r + 1) (i mod p + 1) at element i, and the sum over n ranks is n (n + 1) / 2 (i mod p + 1).

// p: an odd prime, so that no block of a collective's own is a multiple of it, and small enough for
// every partial sum to be exact in the dtype. UserError for too many ranks.
int64_t pattern_period(const std::string& dtype, int64_t ranks);

// Overwrites `buffer` (elements) with what rank `rank` holds.
void fill_pattern(at::Tensor buffer, const std::string& dtype, int64_t ranks, int64_t rank);
// How many elements are not the sum over all ranks; NaN is wrong.
int64_t count_wrong(const at::Tensor& buffer, const std::string& dtype, int64_t ranks);

// What each rank of `flashstep bench allreduce` does.
struct AllreduceTask {
  std::vector<AllreduceCase> cases;  // of one transport and number of ranks
  double cell_seconds = 1;           // for the timed calls of one implementation and case
  bool quick = false;                // one short turn a cell: only to see that all runs
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AllreduceTask, cases, cell_seconds, quick)

// Measures the cases in turn as one of `task.cases[0].ranks` ranks. Every rank calls it; `report`
// gets the records of each, on rank 0 of interest only: samples in seconds of a call, "seconds" of
// calls one after the other and "alone" from its launch to its end, nothing else being under way;
// the fact "wrong", of elements on all ranks.
void measure_allreduce(const AllreduceTask& task, const std::function<void(const Record&)>& report);

struct BenchAllreduceOptions {
  AllreducePlan plan;
  AllreduceTask task = {};  // its cases are replaced by each job's
  // The flashstep that is started as ranks.
  std::string program = "/proc/self/exe";
  TellProgress progress = {};
};

// Starts the ranks of each job in turn. `runs`: a line an implementation and case; no pictures for
// "quick". Wrong elements of ours are the report's failure.
BenchReport bench_allreduce(const BenchAllreduceOptions& options);

// Of measure_allreduce()'s records; where there is no link, shares of the limit are left out.
Benchmark allreduce_benchmark(const BenchAllreduceOptions& options, const Links& links);

}  // namespace flashstep::tools
