// The results of `flashstep bench sharding` as a table, sentences and pictures.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/model/cost.h"
#include "flashstep/parallel/cost.h"
#include "flashstep/report/bench_sharding.h"
#include "flashstep/report/bench_words.h"
#include "flashstep/report/units.h"

namespace flashstep::report {
namespace {

using measure::Cell;
using measure::number_column;

constexpr double kMomentBytes = 8;    // AdamW: two float32 a parameter
constexpr double kGradientBytes = 4;  // float32, in bf16 autocast too

const ShardingRun* find_run(const ShardingResult& result, const std::string& contestant) {
  for (const ShardingRun& run : result.runs) {
    if (run.contestant == contestant && run.has_times()) return &run;
  }
  return nullptr;
}

Memory theory(const ParallelCase& c, const ShardingRun& run) {
  const bool sharded = !run.contestant.starts_with("none");
  const auto ranks = static_cast<double>(c.ranks);
  return data_parallel_memory(
      parameter_count(model_of(c)),
      run.contestant.starts_with("flat") ? kGradientBytes / ranks : kGradientBytes,
      /*bucket_bytes=*/0, kMomentBytes, sharded ? static_cast<int>(c.ranks) : 1);
}

void append_memory(const ShardingResult& result, const ShardingRun& run, std::vector<Cell>& cells) {
  const ShardingMemory& memory = run.memory;
  const double peak = std::max(memory.before_step, memory.after_step);
  const Memory expected = theory(result.c, run);
  for (const double bytes :
       {memory.after_init, memory.before_step, memory.after_step, memory.parameters,
        memory.gradients, expected.gradients, memory.state, expected.optimizer_state,
        peak - memory.parameters - memory.gradients - memory.state}) {
    cells.emplace_back(bytes / kGiB);
  }
}

void append_trace(const ShardingRun& run, std::vector<Cell>& cells) {
  const Trace& update = run.update;
  for (const double seconds : {update.compute_seconds(), update.communication_seconds(),
                               update.exposed_seconds(), run.idle_seconds(), run.host_seconds}) {
    cells.emplace_back(1e3 * seconds);
  }
  cells.emplace_back(update.communication.size());
}

std::vector<Cell> cells_of(const ShardingResult& result, const ShardingRun& run) {
  std::vector<Cell> cells = case_cells(result.c);
  cells.emplace_back(run.contestant);
  if (!run.has_times()) {
    cells.emplace_back(run.trouble.substr(0, run.trouble.find(':')));
    return cells;
  }
  append_memory(result, run, cells);
  cells.emplace_back(1e3 * measure::median(run.optimizer));
  cells.emplace_back(1e3 * measure::median(run.total));
  if (run.is_traced()) append_trace(run, cells);
  return cells;
}

std::string two_digit_milliseconds(double seconds) { return fixed(1e3 * seconds, 2) + " ms"; }

// "; 62.1 % of 11.20 ms of sending exposed"
std::string sending_in_words(const ShardingRun& run) {
  if (run.update.communication.empty()) return "";
  return str("; ", fixed(100 * run.exposed_share(), 1), " % of ",
             two_digit_milliseconds(run.update.communication_seconds()), " of sending exposed");
}

}  // namespace

double ShardingRun::idle_seconds() const {
  return std::max(update_seconds - update.busy_seconds(), 0.0);
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
  for (const char* name :
       {"update", "step", "computing", "communication", "exposed", "idle", "host"}) {
    table.columns.push_back(number_column(name, "ms", 2));
  }
  table.columns.push_back(measure::integer_column("launches"));
  // Behind the numbers: what stands before them is what rows of two reports are known by.
  for (const char* name : {"gradients by", "updates by"})
    table.columns.push_back(measure::text_column(name));
  for (const ShardingResult& result : results) {
    for (const ShardingRun& run : result.runs) {
      std::vector<Cell> cells = cells_of(result, run);
      cells.resize(table.columns.size());
      if (!run.gradients_transport.empty()) cells.end()[-2] = run.gradients_transport;
      if (!run.updates_transport.empty()) cells.end()[-1] = run.updates_transport;
      table.add_row(std::move(cells));
    }
  }
  return table;
}

std::vector<std::string> sharding_verdict(const std::vector<ShardingResult>& results) {
  std::vector<std::string> sentences;
  for (const ShardingResult& result : results) {
    const ShardingRun* whole = find_run(result, "none");
    for (const ShardingRun& run : result.runs) {
      if (whole == nullptr || run.contestant.starts_with("none") || !run.has_times()) continue;
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

std::vector<std::string> sharding_reasons(const std::vector<ShardingResult>& results) {
  std::vector<std::string> sentences;
  for (const ShardingResult& result : results) {
    const ShardingRun* whole = find_run(result, "none");
    if (whole == nullptr || !whole->is_traced()) continue;
    const double alone = whole->update.compute_seconds();
    for (const ShardingRun& run : result.runs) {
      if (run.contestant.starts_with("none") || !run.is_traced()) continue;
      const double slower =
          run.update.compute_seconds() * static_cast<double>(result.c.ranks) / alone;
      std::string sentence =
          str(describe(result.c), ", ", run.contestant, ": an update of ",
              two_digit_milliseconds(run.update_seconds), " computes for ",
              two_digit_milliseconds(run.update.compute_seconds()), ", ", fixed(slower, 2),
              " x a rank's share of ", two_digit_milliseconds(alone), " without shards",
              sending_in_words(run), "; idle ", two_digit_milliseconds(run.idle_seconds()));
      // On a CPU the host is what computes.
      if (result.c.device == "cuda")
        sentence += str("; the host launches for ", two_digit_milliseconds(run.host_seconds));
      sentences.push_back(sentence + ".");
    }
  }
  return sentences;
}

std::vector<NamedPicture> sharding_pictures(const std::vector<ShardingResult>& results,
                                            const std::string& footnote) {
  std::vector<NamedPicture> pictures;
  for (const ShardingResult& result : results) {
    measure::LaneChart chart;
    chart.title = "What runs when in the update of a training step";
    chart.subtitle = describe(result.c) + "; rank 0 under the profiler, which slows the host down";
    chart.footnote = footnote;
    for (const ShardingRun& run : result.runs) {
      if (!run.is_traced()) continue;
      chart.groups.push_back(
          lanes_of(run.update, str(run.contestant, ": ", two_digit_milliseconds(run.update_seconds),
                                   sending_in_words(run))));
    }
    if (!chart.groups.empty())
      pictures.push_back({file_stem(result.c) + "_update", std::move(chart)});
  }
  return pictures;
}

}  // namespace flashstep::report
