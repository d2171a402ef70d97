// Data parallelism's strategies beside each other, beside c10d's own Reducer, and beside ranks that
// send nothing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "flashstep/report/bench_report.h"
#include "flashstep/report/parallel_case.h"
#include "flashstep/report/trace.h"

namespace flashstep::report {

// How one case is measured. All contestants take turns on the same ranks and the same model.
struct DdpPlan {
  ParallelCase c;
  std::vector<std::string> contestants;      // division names; "none": every rank by itself
  int64_t turns = 3, warmup = 3, steps = 5;  // steps a turn, after `warmup` and a first one
  int64_t checked_steps = 2;                 // of the comparison of weights; 0: none
  bool traced = true;
  bool recorded = false;  // timed steps are replays of CUDA graphs, which no host holds up
  void visit(FieldVisitor& visitor);
};

// The plans of a year's handout: "2024", "2025", "2026"; `axes` of lists that a flag replaced.
struct BenchDdpOptions {
  ParallelAxes axes;
  std::vector<std::string> wrappers = {"none", "naive", "flat", "overlapped", "bucketed", "torch"};
  std::vector<double> bucket_megabytes = {1, 10, 100, 1000};
  int64_t turns = 3, warmup = 3, steps = 5, checked_steps = 2;
  bool traced = true;
  bool recorded = false;
  std::function<void(const std::string& line)> progress;
};
// UserError for another year.
BenchDdpOptions ddp_preset(const std::string& year);

// What rank 0 measured of one contestant.
struct DdpRun {
  std::string contestant;
  std::vector<double> forward, backward, waited, optimizer, total;  // seconds, a value a step
  std::vector<double> first;    // the first step of each turn, which is in none of those
  std::vector<double> slowest;  // of all ranks' steps of that number
  std::vector<double> lead;     // of the host, when each step begins; none on a CPU
  std::string transport;        // of gradients: "NCCL", "copies", "Gloo"
  double peak_bytes = 0;        // the largest of the ranks
  double bucket_megabytes = 0;  // in use; 0: not known
  double weight_error = -1;     // Replica::weight_error; -1: not asked
  double communication = -1, exposed = -1, hidden = -1;  // seconds, a share; -1: no trace
  Trace trace;
  std::string trouble;  // "OOM: ...", "failed: ..."

  bool has_times() const { return !total.empty(); }
  double median() const;
  std::string name() const { return shown_name(contestant, bucket_megabytes); }
};
struct DdpResult {
  ParallelCase c;
  std::vector<DdpRun> runs;
  bool recorded = false;
};

// In the process that was called: starts the ranks of each case. A contestant that fails leaves its
// cells empty and the others are measured without it.
BenchReport bench_ddp(const BenchDdpOptions& options);
// In each rank that bench_ddp started.
void bench_ddp_rank(const std::string& task);

// The parts of it. ddp_run of what the ranks handed over, in the order of the plan's contestants.
DdpResult ddp_result(const DdpPlan& plan, const std::vector<std::string>& handed_over);
measure::Table ddp_table(const std::vector<DdpResult>& results);
std::vector<std::string> ddp_verdict(const std::vector<DdpResult>& results);
std::vector<NamedPicture> ddp_pictures(const std::vector<DdpResult>& results,
                                       const std::string& footnote);

}  // namespace flashstep::report
