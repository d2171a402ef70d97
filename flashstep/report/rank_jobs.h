// Contestants that are measured on the same ranks, where some may fail.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "flashstep/report/bench_ranks.h"
#include "flashstep/report/bench_report.h"
#include "flashstep/report/parallel_case.h"

namespace flashstep::report {

struct Failure {
  std::string contestant;  // that was being measured
  std::string sentence;    // "OOM: ..." where memory was too small, else "failed: ..."
};
struct JobResults {
  std::vector<std::string> handed_over;
  std::vector<Failure> failures;
  int signal = 0;
};

// What a case's job ended with, for the report of the benchmark: its signal, and as the machine's
// failure the first one that was not for want of memory.
void note_end(const JobResults& job, const ParallelCase& c, BenchReport& report);

// In a rank, before it measures a contestant: rank 0 hands over {"begins": contestant}, and no rank
// goes on before, so that it is known which one a rank failed in.
void begin_contestant(const std::string& contestant, const Group& group);

// "OOM: ..." where memory was too small for the ranks, else "failed: ..."; `sentence` is
// RanksOutcome::failure, and the kernel has ended some process meanwhile for want of memory or not
// (measure::may_have_killed_since).
std::string describe_failure(const std::string& sentence, bool kernel_ended_one);

// Runs `job`, whose task `task_of` makes for a list of contestants. Where
// the ranks fail, the contestant that had begun is left out, and the ranks are started once more
// for the others; all are left out where none had begun. UserError when they end with its exit
// code, MachineError when they cannot be started.
JobResults run_contestants(
    RankJob job, std::vector<std::string> contestants,
    const std::function<std::string(const std::vector<std::string>& contestants)>& task_of);

// The job of `flashstep bench COMMAND` for a case, its progress under the case's name.
using TellProgress = std::function<void(const std::string& line)>;
RankJob job_of(const std::string& command, const ParallelCase& c, const TellProgress& progress);

// The ranks of a plan, which is their task and has a case and contestants.
template <typename Plan>
JobResults run_plan(const std::string& command, const Plan& plan, const TellProgress& progress) {
  return run_contestants(job_of(command, plan.c, progress), plan.contestants,
                         [&](const std::vector<std::string>& left) {
                           Plan part = plan;
                           part.contestants = left;
                           return write_json(part);
                         });
}

// A result, still empty, for each contestant.
template <typename Run>
std::vector<Run> runs_of(const std::vector<std::string>& contestants) {
  std::vector<Run> runs(contestants.size());
  for (size_t i = 0; i < runs.size(); ++i) runs[i].contestant = contestants[i];
  return runs;
}

template <typename Run>
void put_failures(const std::vector<Failure>& failures, std::vector<Run>& runs) {
  for (const Failure& failure : failures) {
    for (Run& run : runs) {
      if (run.contestant == failure.contestant) run.trouble = failure.sentence;
    }
  }
}

}  // namespace flashstep::report
