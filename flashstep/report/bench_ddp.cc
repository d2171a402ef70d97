#include "flashstep/report/bench_ddp.h"

#include <utility>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/rank_jobs.h"

namespace flashstep::report {
namespace {

const char* kHowToReadDdp =
    "Batch: rows of one rank. none: every rank by itself, at the same time, without communication; "
    "torch: "
    "c10d's own Reducer. Times: medians of a step on the device; backward ends when every gradient "
    "is the mean; waited: of it, for gradients in flight when its own work is done. All of rank "
    "0; slowest: of the rank that took longest for each step. First: median of each turn's first "
    "step, which the host begins without a lead and which is in no other time. Lead: how far the "
    "host is ahead when the others begin, in the median; it grows "
    "through a turn, and near 0 the host is the bound. Added: to the step of none. Communication: "
    "time in which a collective runs, exposed: of it, nothing computes, hidden: the rest; of one "
    "step under the profiler, amid others. Memory: the peak of the rank with most. Weights: "
    "largest difference from a single process that took all ranks' rows, over the largest "
    "movement. By: what carried the gradients.";

const char* kHowToReadRecorded =
    "Recorded: the timed steps, and the one under the profiler, are replays of CUDA graphs of one "
    "step, each of which the host launches at once: no step waits for it. Waiting for gradients is "
    "in backward and not known apart, copies count as computing, memory is that of recording.";

DdpPlan plan_of(const BenchDdpOptions& options, const ParallelCase& c) {
  DdpPlan plan;
  plan.c = c;
  plan.contestants = division_names(options.wrappers, options.bucket_megabytes);
  check_transports(plan.contestants, c.device);
  plan.turns = options.turns;
  plan.warmup = options.warmup;
  plan.steps = options.steps;
  plan.checked_steps = options.checked_steps;
  plan.traced = options.traced;
  plan.recorded = options.recorded;
  if (!plan.recorded) return plan;
  require(c.device == "cuda", "[bench ddp] expected --device cuda with --graph, got ", c.device);
  return plan;
}

DdpResult measure_case(const BenchDdpOptions& options, const ParallelCase& c, BenchReport& report) {
  const DdpPlan plan = plan_of(options, c);
  const JobResults job = run_plan("ddp", plan, options.progress);
  DdpResult result = ddp_result(plan, job.handed_over);
  put_failures(job.failures, result.runs);
  note_end(job, c, report);
  return result;
}

}  // namespace

double DdpRun::median() const { return measure::median(total); }

BenchDdpOptions ddp_preset(const std::string& year) {
  BenchDdpOptions options;
  if (year == "2024") {
    options.axes.models = {"small", "medium", "large", "xl", "2.7B"};
    options.axes.batch_size = 16;
    options.bucket_megabytes = {5, 10, 50, 100, 500};
  } else if (year == "2025") {
    options.axes.contexts = {128, 512};
    options.axes.precisions = {"fp32", "bf16"};
  } else {
    require(year == "2026", "[bench ddp] expected preset 2024, 2025 or 2026, got \"", year, "\"");
    options.axes.models = {"xl26"};
    options.axes.contexts = {512};
    options.axes.precisions = {"fp32", "bf16"};
    options.bucket_megabytes = {25};  // that handout asks for no buckets: ours as they come
  }
  return options;
}

BenchReport bench_ddp(const BenchDdpOptions& options) {
  const double begin = measure::steady_seconds();
  std::vector<DdpResult> results;
  BenchReport report;
  for (const ParallelCase& c : cases_of(options.axes)) {
    results.push_back(measure_case(options, c, report));
    if (report.signal != 0) break;
  }
  report.table = ddp_table(results);
  auto& notes = report.table.notes;
  for (const DdpResult& result : results) {
    for (const DdpRun& run : result.runs) {
      if (!run.trouble.empty())
        notes.push_back(str(describe(result.c), ", ", run.name(), ": ", run.trouble, "."));
      if (!run.trace.trouble.empty())
        notes.push_back(str(describe(result.c), ", ", run.name(), ": ", run.trace.trouble, "."));
    }
  }
  notes.emplace_back(kHowToReadDdp);
  if (options.recorded) notes.emplace_back(kHowToReadRecorded);
  const std::string machine = measure::one_line(measure::describe_machine());
  notes.push_back(str("Medians of ", options.turns * options.steps, " steps in ", options.turns,
                      " turns; ", machine, "; ", human_seconds(measure::steady_seconds() - begin),
                      "."));
  if (report.signal != 0) notes.emplace_back("Interrupted: the rest was not measured.");
  for (std::string& sentence : ddp_verdict(results)) notes.push_back(std::move(sentence));
  report.pictures = ddp_pictures(results, "flashstep bench ddp; " + machine);
  return report;
}

}  // namespace flashstep::report
