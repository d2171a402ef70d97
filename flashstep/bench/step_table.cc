// The results of `flashstep bench step` as tables, sentences and pictures.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/bench/schema.h"
#include "flashstep/bench/step.h"
#include "flashstep/measure/limits.h"
#include "flashstep/measure/stats.h"
#include "flashstep/ops/internal.h"

namespace flashstep::tools {
namespace {

using measure::Cell;
using measure::number_column;

bool is_ours(const Record& r) { return r.implementation == kOurs; }
bool is_peer(const Record& r) { return !r.implementation.starts_with(kOurs); }
bool has_times(const Record& r) { return r.has("total"); }

Schema step_case_schema() {
  return {text_key("model"),     {number_column("parameters", "M", 2), fact("parameters")},
          integer_key("batch"),  integer_key("context"),
          text_key("precision"), text_key("attention"),
          text_key("mode"),      {measure::integer_column("warm-up", "steps"), fact("warm-up")}};
}

// "failed", too, where what was asked for cannot be done.
Cell mean_or_word(const Record& r, const Records& all) {
  if (!r.outcome.measured()) return r.outcome.status == Status::kOutOfMemory ? "OOM" : "failed";
  return mean("total", 1e3)(r, all);
}

const NumberOf kTokensPerSecond = rate("tokens", "total");

double percent_of_limit(const Record& r) {
  if (!has_times(r)) return NAN;
  return 100 * r.number("flops") / r.median("total") /
         measure::matmul_limit_flops(r.text("device"), r.text("precision"));
}

const CellOf kPeakMemory = if_has("total", fact("peak_bytes", 1 / kGiB));

// How much faster `implementation` is than `other` in a case.
CellOf ratio(const std::string& implementation, const std::string& other) {
  return of(implementation, finite([other](const Record& r, const Records& all) {
              return times_as_fast(r, all, other, "total");
            }));
}

Schema replayed_schema() {
  const auto column = [](const measure::Column& column, const CellOf& cell) -> SchemaColumn {
    return {column, of(kReplayed, cell)};
  };
  return {column(significant("graph median", "ms"), median("total", 1e3)),
          column(significant("graph p10", "ms"), quantile("total", 0.1, 1e3)),
          column(significant("graph p90", "ms"), quantile("total", 0.9, 1e3)),
          column(number_column("graph tokens", "1/s", 0), finite(kTokensPerSecond)),
          column(number_column("graph of limit", "%", 1), finite(percent_of_limit)),
          column(number_column("graph peak memory", "GiB", 2), kPeakMemory),
          {number_column("graph x launched", "", 2), ratio(kReplayed, kOurs)}};
}

Cell peer_tokens(const Record& r, const Records& all) {
  if (r.outcome.status == Status::kOutOfMemory) return "OOM";
  return finite(kTokensPerSecond)(r, all);
}

Schema step_schema(const Records& records) {
  const auto any = [&](const auto& is) { return std::any_of(records.begin(), records.end(), is); };
  Schema schema = step_case_schema() +
                  Schema{{significant("mean", "ms"), mean_or_word},
                         {significant("deviation", "ms"), deviation("total", 1e3)},
                         {significant("median", "ms"), median("total", 1e3)},
                         {significant("p10", "ms"), quantile("total", 0.1, 1e3)},
                         {significant("p90", "ms"), quantile("total", 0.9, 1e3)},
                         {significant("forward", "ms"), median("forward", 1e3)},
                         {significant("forward deviation", "ms"), deviation("forward", 1e3)},
                         {significant("backward", "ms"), median("backward", 1e3)},
                         {significant("backward deviation", "ms"), deviation("backward", 1e3)},
                         {significant("optimizer", "ms"), median("optimizer", 1e3)},
                         {number_column("tokens", "1/s", 0), finite(kTokensPerSecond)},
                         {significant("work", "TFLOP", 3), if_has("total", fact("flops", 1e-12))},
                         {significant("rate", "TFLOP/s", 3), finite(rate("flops", "total", 1e-12))},
                         {number_column("of limit", "%", 1), finite(percent_of_limit)},
                         {number_column("peak memory", "GiB", 2), kPeakMemory}};
  if (any([](const Record& r) { return r.facts.contains("gradient error"); }))
    schema.push_back({error_column("gradient error"), fact("gradient error")});
  const bool replayed =
      any([](const Record& r) { return r.implementation == kReplayed && has_times(r); });
  if (replayed) schema = schema + replayed_schema();
  for (const std::string& peer : records.where(is_peer).distinct(implementation_of)) {
    schema.push_back({number_column(peer, "tokens/s", 0), of(peer, peer_tokens)});
    schema.push_back({number_column("x " + peer, "", 2), ratio(kOurs, peer)});
    if (replayed)
      schema.push_back({number_column("graph x " + peer, "", 2), ratio(kReplayed, peer)});
    if (any([&](const Record& r) {
          return r.implementation == peer && r.facts.contains("peak_bytes");
        }))
      schema.push_back({number_column(peer + " peak memory", "GiB", 2), of(peer, kPeakMemory)});
  }
  return schema;
}

// ---- Every single step

// A record for each step of one, in the order of time.
void add_steps_of(const Record& r, Records& steps) {
  const auto& turns = r.series("turn");
  const double last = turns.empty() ? 0 : turns.back();
  int64_t number = 0;
  for (double turn = 0; turn <= last; ++turn) {
    for (const std::string prefix : {"warm-up ", ""}) {
      for (size_t i = 0; i < r.series(prefix + "turn").size(); ++i) {
        if (r.series(prefix + "turn")[i] != turn) continue;
        Record step{.key = r.key, .implementation = r.implementation};
        step.facts = {{"turn", static_cast<int64_t>(turn) + 1},
                      {"step", ++number},
                      {"kind", prefix.empty() ? "timed" : "warm-up"}};
        for (const char* part : {"forward", "backward", "optimizer", "total"}) {
          const auto& seconds = r.series(prefix + part);
          if (i < seconds.size()) step.facts[part] = seconds[i];
        }
        steps.add(std::move(step));
      }
    }
  }
}

measure::Table step_runs(const Records& records) {
  Records steps;
  for (const Record& r : records) add_steps_of(r, steps);
  return fill("Every single step",
              Schema{{measure::text_column("who"), implementation()}} + step_case_schema() +
                  Schema{{measure::integer_column("turn"), fact("turn")},
                         {measure::integer_column("step"), fact("step")},
                         {measure::text_column("kind"), fact("kind")},
                         {significant("forward", "ms"), fact("forward", 1e3)},
                         {significant("backward", "ms"), fact("backward", 1e3)},
                         {significant("optimizer", "ms"), fact("optimizer", 1e3)},
                         {significant("total", "ms"), fact("total", 1e3)}},
              steps);
}

// ---- Sentences

std::vector<std::string> step_findings(const Records& records) {
  std::vector<std::string> notes;
  const auto any = [&](const auto& is) { return std::any_of(records.begin(), records.end(), is); };
  if (any([](const Record& r) { return r.text("model").ends_with(" *"); })) {
    notes.emplace_back(
        "*: the size does not fit into memory; this is the same with as many of its layers as do.");
  }
  const std::string products = products_note(at::kBFloat16);
  const auto is_bf16_on_cpu = [](const Record& r) {
    return r.text("precision") == "bf16" && r.text("device") == "cpu";
  };
  if (!products.empty() && any(is_bf16_on_cpu)) notes.push_back("bf16: " + products + ".");
  for (const std::string ours : {kOurs, kReplayed}) {
    const Records compared =
        records.where([&](const Record& r) { return r.implementation == ours || is_peer(r); });
    for (const std::string& sentence : speed_beside_others(compared, ours, "total"))
      notes.push_back("PyTorch: " + sentence);
  }
  return notes;
}

// ---- Pictures

// Forward, backward and optimizer of every size, of one context, precision and attention.
measure::Plot parts_plot(const Records& records) {
  measure::Plot plot = part_bars(records, text_of("model"),
                                 {{"forward", median_of("forward", 1e3)},
                                  {"backward", median_of("backward", 1e3)},
                                  {"optimizer", median_of("optimizer", 1e3)}});
  const Record& first = records.all().front();
  plot.title = "A training step in its parts";
  plot.subtitle = str("batch ", std::llround(first.number("batch")), ", context ",
                      std::llround(first.number("context")), ", ", first.text("precision"),
                      ", attention ", first.text("attention"), "; medians");
  plot.y.label = "ms";
  return plot;
}

// Every single step of processes that began cold, by how many of them were not counted.
measure::Plot warmup_plot(const Records& records) {
  measure::Plot plot;
  plot.title = "Every single step of a process, from its first one on";
  plot.subtitle = records.all().front().what;
  plot.x.label = "step";
  plot.y.label = "ms";
  plot.y.scale = measure::Scale::kLog;
  for (const Record& r : records) {
    measure::Series& series = plot.series.emplace_back();
    series.kind = measure::Series::Kind::kLineAndPoints;
    series.name = str("warm-up ", std::llround(r.number("warm-up")), ": mean ",
                      fixed(1e3 * measure::mean(r.series("total")), 1), " ms");
    for (const std::string prefix : {"warm-up ", ""}) {
      const auto &turns = r.series(prefix + "turn"), &totals = r.series(prefix + "total");
      for (size_t i = 0; i < totals.size() && turns[i] == 0; ++i) {
        series.x.push_back(static_cast<double>(series.x.size() + 1));
        series.y.push_back(totals[i] * 1e3);
      }
    }
  }
  return plot;
}

std::vector<NamedPicture> step_pictures(const Records& all) {
  std::vector<NamedPicture> pictures;
  const Records records =
      all.where([](const Record& r) { return is_ours(r) && r.outcome.measured(); });
  if (records.empty()) return pictures;
  const auto add = [&](const std::string& name, measure::Plot plot) {
    pictures.push_back({without_slashes(name), std::move(plot)});
  };
  const double warmup = all.all().front().number("warm-up");
  const Records steps = records.where(
      [&](const Record& r) { return r.has("optimizer") && r.number("warm-up") == warmup; });
  for (const auto& [stem, members] : steps.grouped(text_of("stem")))
    add("parts_" + stem, parts_plot(members));
  for (const auto& [key, members] : records.grouped(
           [](const Record& r) { return r.text("model") + r.text("stem") + r.text("mode"); })) {
    if (members.all().size() > 1)
      add("warmup_" + members.all().front().text("warm-up stem"), warmup_plot(members));
  }
  return pictures;
}

}  // namespace

Benchmark step_benchmark(const BenchStepOptions& options) {
  const StepTask& task = options.task;
  return {
      .command = "bench step",
      .title = str("Training step on the ", options.axes.common.device == "cuda" ? "GPU" : "CPU"),
      .device = options.axes.common.device,
      .schema = step_schema,
      .has_row = [](const Record& r, const Records&) { return is_ours(r); },
      .runs_table = step_runs,
      .how_to_read = {note("step")},
      .how = str("Timed steps: ", task.steps * task.turns, " in ", task.turns,
                 task.turns == 1 ? " turn" : " turns"),
      .findings = step_findings,
      .pictures = step_pictures};
}

}  // namespace flashstep::tools
