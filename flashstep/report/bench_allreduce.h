// All-reduce over ranks of this machine, beside the bare library below it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "flashstep/report/bench_allreduce_cases.h"
#include "flashstep/report/bench_report.h"
#include "flashstep/report/link_limit.h"

namespace flashstep::report {

struct BenchAllreduceOptions {
  AllreducePlan plan;
  double cell_seconds = 1;  // for the timed calls of one contestant and case
  bool quick = false;       // one short turn a cell: only to see that all runs
  // The flashstep that is started as ranks, and what makes it one.
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments = {"bench", "allreduce"};
  std::function<void(uint64_t done, uint64_t total, const std::string& note)> progress;
};

// Starts the ranks of each transport and number of ranks in turn. `runs`: a line a contestant and
// case; no pictures for "quick". Ranks that ended with an error are the failure; the rest was
// measured.
BenchReport bench_allreduce(const BenchAllreduceOptions& options);
// The same, in a process that it started as a rank.
void run_allreduce_rank(const std::string& task);

// By device and backend; where there is none, shares of the limit are left out.
using Links = std::map<std::pair<std::string, std::string>, Link>;

measure::Table allreduce_table(const std::vector<AllreduceResult>& results, const Links& links);
measure::Table allreduce_runs_table(const std::vector<AllreduceResult>& results);
// How the results stand to the bars; the last sentence is the verdict.
std::vector<std::string> allreduce_verdict(const std::vector<AllreduceResult>& results);
std::vector<NamedPicture> allreduce_pictures(const std::vector<AllreduceResult>& results,
                                             const Links& links, const std::string& footnote);

}  // namespace flashstep::report
