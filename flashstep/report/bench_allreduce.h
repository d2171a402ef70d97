// All-reduce over ranks of this machine, beside the bare library below it.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/report/bench_allreduce_cases.h"
#include "flashstep/report/benchmark.h"
#include "flashstep/report/link_limit.h"

namespace flashstep::report {

struct BenchAllreduceOptions {
  AllreducePlan plan;
  double cell_seconds = 1;  // for the timed calls of one implementation and case
  bool quick = false;       // one short turn a cell: only to see that all runs
  // The flashstep that is started as ranks, and what makes it one.
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments = {"bench", "allreduce"};
  TellProgress progress = {};
};

// Starts the ranks of each transport and number of ranks in turn. `runs`: a line an implementation
// and case; no pictures for "quick". Wrong elements of ours are the report's failure.
BenchReport bench_allreduce(const BenchAllreduceOptions& options);
// The same, in a process that it started as a rank.
void run_allreduce_rank(const std::string& task);

// By backend and device; where there is none, shares of the limit are left out.
using Links = std::map<std::pair<std::string, std::string>, Link>;

// Of measure_allreduce()'s records.
Benchmark allreduce_benchmark(const BenchAllreduceOptions& options, const Links& links);

}  // namespace flashstep::report
