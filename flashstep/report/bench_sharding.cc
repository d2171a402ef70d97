#include "flashstep/report/bench_sharding.h"

#include <algorithm>
#include <utility>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/machine.h"
#include "flashstep/report/rank_jobs.h"

namespace flashstep::report {
namespace {

const char* kHowToReadSharding =
    "Memory of the rank with most. After init: model and optimizer are made; before and after the "
    "update: peaks until then of a whole step, the second one, so that the optimizer's state is "
    "there. Parameters, gradients, state: bytes of those tensors; theory: of state and gradients, "
    "from parallel/cost.h. Rest: activations, buckets and scratch at the peak. Times: medians on "
    "the device, without each turn's first step. By: what carried gradients, and updated "
    "parameters.";

const char* kHowToReadTheUpdate =
    "Computing, communication, exposed, idle: of rank 0's update in one step under the profiler: "
    "its kernels run; its collectives run; of that, with nothing computing; nothing runs. "
    "Computing, exposed and idle are together the update there. Host: its time in an update that "
    "an idle device begins, without the profiler. Launches: collectives.";

ShardingResult measure_case(const BenchShardingOptions& options, const ParallelCase& c,
                            BenchReport& report) {
  ShardingPlan plan = options.plan;
  plan.c = c;
  check_transports(plan.contestants, c.device);
  const JobResults job = run_plan("sharding", plan, options.progress);
  ShardingResult result = sharding_result(plan, job.handed_over);
  put_failures(job.failures, result.runs);
  note_end(job, c, report);
  return result;
}

// What went wrong, and the buckets that were in use.
void add_notes(const ShardingResult& result, std::vector<std::string>& notes) {
  std::vector<std::string> buckets;
  for (const ShardingRun& run : result.runs) {
    const std::string name = str(describe(result.c), ", ", run.contestant);
    if (!run.trouble.empty()) notes.push_back(str(name, ": ", run.trouble, "."));
    if (!run.update.trouble.empty()) notes.push_back(str(name, ": ", run.update.trouble, "."));
    if (!run.buckets.empty()) buckets.push_back(run.contestant + ": " + run.buckets);
  }
  if (!buckets.empty())
    notes.push_back(str(describe(result.c), ", gradients: ", join(buckets, "; "), "."));
}

}  // namespace

std::vector<std::string> sharding_names() {
  return {"none", "whole", "flat", "none nccl", "whole nccl", "flat nccl", "flat scattered"};
}

ParallelConfig sharding_by_name(const std::string& name) {
  const std::vector<std::string> names = sharding_names();
  require(std::find(names.begin(), names.end(), name) != names.end(),
          "[bench sharding] expected one of ", join(names, ", "), ", got \"", name, "\"");
  ParallelConfig division;
  division.shard_optimizer = name.substr(0, name.find(' '));
  if (name.ends_with(" nccl")) division.peer_copies = "none";
  if (name.ends_with(" scattered")) division.flat_buckets = "yes";
  return division;
}

BenchShardingOptions sharding_preset(const std::string& year) {
  BenchShardingOptions options;
  if (year == "2024") {
    options.axes.models = {"small", "medium", "large", "xl", "2.7B"};
    options.axes.batch_size = 16;
  } else if (year == "2025") {
    options.axes.precisions = {"fp32", "bf16"};
  } else {
    require(year == "2026", "[bench sharding] expected preset 2024, 2025 or 2026, got \"", year,
            "\"");
    options.axes.models = {"xl26"};
    options.axes.contexts = {512};
    options.axes.precisions = {"fp32", "bf16"};
  }
  return options;
}

BenchReport bench_sharding(const BenchShardingOptions& options) {
  const double begin = measure::steady_seconds();
  std::vector<ShardingResult> results;
  BenchReport report;
  for (const ParallelCase& c : cases_of(options.axes)) {
    results.push_back(measure_case(options, c, report));
    if (report.signal != 0) break;
  }
  report.table = sharding_table(results, options.plan);
  auto& notes = report.table.notes;
  for (const ShardingResult& result : results) add_notes(result, notes);
  notes.emplace_back(kHowToReadSharding);
  if (options.plan.traced) notes.emplace_back(kHowToReadTheUpdate);
  const std::string machine = measure::one_line(measure::describe_machine());
  notes.push_back(str(machine, "; ", human_seconds(measure::steady_seconds() - begin), "."));
  for (std::string& sentence : sharding_reasons(results)) notes.push_back(std::move(sentence));
  for (std::string& sentence : sharding_verdict(results)) notes.push_back(std::move(sentence));
  report.pictures = sharding_pictures(results, "flashstep bench sharding; " + machine);
  return report;
}

}  // namespace flashstep::report
