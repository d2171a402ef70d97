#include "flashstep/report/bench_sharding.h"

#include <cmath>
#include <limits>
#include <utility>

#include "flashstep/base/error.h"
#include "flashstep/base/text.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/stats.h"
#include "flashstep/model/cost.h"
#include "flashstep/parallel/cost.h"
#include "flashstep/report/rank_jobs.h"
#include "flashstep/report/units.h"

namespace flashstep::report {
namespace {

using measure::Cell;
using measure::number_column;

constexpr double kMomentBytes = 8;    // AdamW: two float32 a parameter
constexpr double kGradientBytes = 4;  // float32, in bf16 autocast too

const char* kHowToReadSharding =
    "Memory of the rank with most. After init: model and optimizer are made; before and after the "
    "update: peaks until then of a whole step, the second one, so that the optimizer's state is "
    "there. Parameters, gradients, state: bytes of those tensors; theory: of state and gradients, "
    "from parallel/cost.h. Rest: activations, buckets and scratch at the peak. Times: medians on "
    "the device.";

const ShardingRun* find_run(const ShardingResult& result, const std::string& contestant) {
  for (const ShardingRun& run : result.runs) {
    if (run.contestant == contestant && run.has_times()) return &run;
  }
  return nullptr;
}

parallel::Memory theory(const ParallelCase& c, const ShardingRun& run, double bucket_megabytes) {
  const bool sharded = run.contestant != "none";
  const auto ranks = static_cast<double>(c.ranks);
  return parallel::data_parallel_memory(
      parameter_count(model_of(c)),
      run.contestant == "flat" ? kGradientBytes / ranks : kGradientBytes, bucket_megabytes * 1e6,
      kMomentBytes, sharded ? static_cast<int>(c.ranks) : 1);
}

std::vector<Cell> cells_of(const ShardingResult& result, const ShardingRun& run,
                           const ShardingPlan& plan) {
  std::vector<Cell> cells = case_cells(result.c);
  cells.emplace_back(run.contestant);
  if (!run.has_times()) {
    cells.emplace_back(run.trouble.substr(0, run.trouble.find(':')));
    cells.insert(cells.end(), 10, Cell());
    return cells;
  }
  const ShardingMemory& memory = run.memory;
  const double peak = std::max(memory.before_step, memory.after_step);
  const parallel::Memory expected = theory(result.c, run, plan.bucket_megabytes);
  for (const double bytes :
       {memory.after_init, memory.before_step, memory.after_step, memory.parameters,
        memory.gradients, expected.gradients, memory.state, expected.optimizer_state,
        peak - memory.parameters - memory.gradients - memory.state}) {
    cells.emplace_back(bytes / kGiB);
  }
  cells.emplace_back(1e3 * measure::median(run.optimizer));
  cells.emplace_back(1e3 * measure::median(run.total));
  return cells;
}

ShardingResult measure_case(const BenchShardingOptions& options, const ParallelCase& c,
                            int& signal) {
  ShardingPlan plan = options.plan;
  plan.c = c;
  const JobResults job = run_plan("sharding", plan, options.progress);
  ShardingResult result = sharding_result(plan, job.handed_over);
  put_failures(job.failures, result.runs);
  signal = job.signal;
  return result;
}

}  // namespace

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

measure::Table sharding_table(const std::vector<ShardingResult>& results,
                              const ShardingPlan& plan) {
  measure::Table table;
  table.title = str("The optimizer's state divided between ranks (wrapper ", plan.wrapper, ")");
  table.columns = case_columns();
  table.columns.push_back(measure::text_column("optimizer"));
  for (const char* name : {"after init", "before update", "after update", "parameters", "gradients",
                           "in theory", "state", "in theory", "rest"}) {
    table.columns.push_back(number_column(name, "GiB", 3));
  }
  table.columns.push_back(number_column("update", "ms", 2));
  table.columns.push_back(number_column("step", "ms", 2));
  for (const ShardingResult& result : results) {
    for (const ShardingRun& run : result.runs) table.add_row(cells_of(result, run, plan));
  }
  return table;
}

std::vector<std::string> sharding_verdict(const std::vector<ShardingResult>& results) {
  std::vector<std::string> sentences;
  const auto standing = [](bool kept) { return kept ? "kept" : "BROKEN"; };
  for (const ShardingResult& result : results) {
    const ShardingRun* whole = find_run(result, "none");
    for (const ShardingRun& run : result.runs) {
      if (whole == nullptr || run.contestant == "none" || !run.has_times()) continue;
      const double share = run.memory.state / whole->memory.state;
      const double wanted = 1.0 / static_cast<double>(result.c.ranks);
      const double time = measure::median(run.total) / measure::median(whole->total);
      sentences.push_back(str(describe(result.c), ", ", run.contestant, ": ", fixed(100 * share, 2),
                              " % of the state a rank (bar ", fixed(100 * wanted * 1.02, 2), ": ",
                              standing(share <= 1.02 * wanted), "); ", fixed(time, 3),
                              " x the step without shards (bar 1: ", standing(time <= 1), ")."));
    }
  }
  if (sentences.empty()) sentences.emplace_back("Verdict: nothing to compare.");
  return sentences;
}

BenchReport bench_sharding(const BenchShardingOptions& options) {
  const double begin = measure::steady_seconds();
  std::vector<ShardingResult> results;
  BenchReport report;
  for (const ParallelCase& c : cases_of(options.axes)) {
    results.push_back(measure_case(options, c, report.signal));
    if (report.signal != 0) break;
  }
  report.table = sharding_table(results, options.plan);
  auto& notes = report.table.notes;
  for (const ShardingResult& result : results) {
    for (const ShardingRun& run : result.runs) {
      if (run.trouble.empty()) continue;
      notes.push_back(str(describe(result.c), ", ", run.contestant, ": ", run.trouble, "."));
    }
  }
  notes.emplace_back(kHowToReadSharding);
  notes.push_back(str(measure::one_line(measure::describe_machine()), "; ",
                      human_seconds(measure::steady_seconds() - begin), "."));
  for (std::string& sentence : sharding_verdict(results)) notes.push_back(std::move(sentence));
  return report;
}

}  // namespace flashstep::report
