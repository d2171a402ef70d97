// Where the time of a model's step goes: by pass, by range of the model, by kernel (on a CPU: by
// operator) and by class of work, as tables, flame graphs and chrome traces.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/workload.h"
#include "flashstep/profile/profile_sums.h"

namespace flashstep::tools {

struct ProfileOptions {
  // The steps of attention (scores, softmax, values) are kernels of their own in naive only.
  WorkloadAxes axes = {.attentions = {"auto", "naive"}};
  int64_t warmup = 3;     // steps that are not timed, in a range of that name
  int64_t steps = 5;      // timed by the clock (on a GPU by events), without the profiler
  int64_t recorded = 2;   // under LibTorch's profiler, after one more, in which it is slow
  int64_t top = 10;       // lines a case in the table of kernels
  bool inference = true;  // beside a mode with a backward pass: the forward pass by itself
  // false: only ranges, between cudaProfilerStart and Stop, for a profiler from outside (nsys,
  // ncu), beside which LibTorch's cannot run.
  bool record = true;
  std::string directory;  // for the chrome traces; empty: none are written
  TellProgress progress = {};
};

// The table of times, and below it "kernels", "classes", "shares", "ranges", "blocks" and (with
// attention naive) "attention"; docs/measuring.md says what their columns mean. Pictures: a flame
// graph and the shares of the classes, for each case. Where memory is too small the cells say so
// and the rest is measured. UserError for what cannot be measured at all, before anything is.
BenchReport profile_report(const ProfileOptions& options);

// The same tables of a chrome trace, of flashstep or PyTorch, as far as it has ranges; without the
// columns that a trace cannot fill (the model, limits, timers). UserError where the file is none.
BenchReport trace_report(const std::filesystem::path& file, int64_t top,
                         const std::function<void(uint64_t, uint64_t)>& progress = {});

// ---- Inside

// What this machine can do at most, with the case's dtype; 0: not known.
struct ProfileLimits {
  double flops = 0, bytes = 0;  // a second
};

struct ProfileRun {  // one mode of one case
  ProfileSums sums;
  Record timers = {};  // StepTimes, a sample a step; none for a trace that was read

  // Of all recorded steps: what shares are of. On a GPU by the clock, where there is one: recording
  // slows the host down, and what was recorded would be idle for longer than a step is.
  double wall_seconds() const;
  double idle_seconds() const;  // of it nothing runs, on a GPU; 0 on a CPU, where somebody does
  double milliseconds_a_step(double seconds) const {
    return seconds * 1e3 / static_cast<double>(sums.steps);
  }
};

struct ProfileCase {
  std::string name;  // "small, context 128, fp32, naive", or a file's name
  std::optional<Workload> workload;
  ProfileLimits limits;
  std::optional<ProfileRun> step;       // as the workload's mode says
  std::optional<ProfileRun> inference;  // the forward pass by itself, without a graph

  std::string mode() const { return workload ? workload->mode : "trace"; }
};

// profile_tables.cc
// A line of the table of times each; of a case that was not measured one that says so. Facts: the
// columns' names.
std::vector<Record> times_of(const ProfileCase& c, const Outcome& outcome);
// What is said of these cases, which live as long as it.
Benchmark profile_benchmark(const std::vector<ProfileCase>& cases, int64_t top);

// profile_notes.cc
std::vector<NamedPicture> profile_pictures(const std::vector<ProfileCase>& cases);
std::string file_name(const std::string& case_name);  // letters, digits, "_", "." and "-"
std::vector<std::string> profile_notes(const std::vector<ProfileCase>& cases);

}  // namespace flashstep::tools
