// What the benchmarks of data parallelism measure: a workload on each of so many ranks, and how its
// work is divided.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/schema.h"
#include "flashstep/bench/task.h"
#include "flashstep/bench/workload.h"
#include "flashstep/train/config.h"

namespace flashstep::tools {

struct ParallelCase : Workload {  // of one rank
  int64_t ranks = 2;
  std::string backend() const { return device == "cuda" ? "nccl" : "gloo"; }
  void visit(FieldVisitor& visitor);
};

// Every combination of the lists, sizes first, numbers of ranks last.
struct ParallelAxes : WorkloadAxes {
  ParallelAxes() : WorkloadAxes{.sizes = {"xl"}, .common = {.model = {}, .batch_size = 4}} {}
  std::vector<int64_t> ranks = {2};
};
std::vector<ParallelCase> cases_of(const ParallelAxes& axes);

std::string describe(const ParallelCase& c);   // "xl, 2 ranks, batch 4, context 512, bf16"
std::string file_stem(const ParallelCase& c);  // "xl_2x4x512_bf16", for names of files

// Not measured yet; the key is model, ranks, batch, context and precision.
Record blank_of(const ParallelCase& c, const std::string& implementation);
Schema parallel_schema();  // columns of that key

// A wrapper in words: "none", "naive", "flat", "overlapped", "bucketed 25", "torch 25" (MB; 0:
// chosen), "bucketed 25 nccl" (parallel.peer_copies none). UserError for others.
ParallelConfig division_by_name(const std::string& name);
// Those of the wrappers ("bucketed", "bucketed nccl"), each that has buckets once for every size
// of them.
std::vector<std::string> division_names(const std::vector<std::string>& wrappers,
                                        const std::vector<double>& bucket_megabytes);
// UserError where a name asks for a transport ("... nccl") that the device has not: on a CPU Gloo
// carries everything.
void check_transports(const std::vector<std::string>& names, const std::string& device);
// The name for readers, once the size in use is known (NaN: it is not): "bucketed 126 MB (chosen)"
// where it was chosen, else the name itself.
std::string shown_name(const std::string& name, double bucket_megabytes);

// `blanks` as measured on the ranks of a plan, which has a case `c` and `implementations`, of which
// some may be left: `command` is what a rank is started with.
template <typename Plan>
std::vector<Record> measure_plan(const Plan& plan, const std::string& command,
                                 std::vector<Record> blanks, const Run& run) {
  RankJob job;
  job.ranks = static_cast<int>(plan.c.ranks);
  job.arguments = {"bench", command};
  job.progress = [&](const std::string& line) { run.tell(describe(plan.c) + ": " + line); };
  const auto task_of = [&](const std::vector<std::string>& implementations) {
    Plan part = plan;
    part.implementations = implementations;
    return write_task(part);
  };
  return measure_on_ranks(job, task_of, std::move(blanks));
}

}  // namespace flashstep::tools
