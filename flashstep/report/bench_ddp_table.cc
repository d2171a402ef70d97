// The results of `flashstep bench ddp` as a table, sentences and pictures.
#include <algorithm>
#include <cmath>
#include <limits>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/bench_ddp.h"
#include "flashstep/report/bench_words.h"
#include "flashstep/report/units.h"

namespace flashstep::report {
namespace {

using measure::Cell;
using measure::number_column;

std::string case_of(const DdpResult& result) {
  return describe(result.c) + (result.recorded ? ", recorded" : "");
}

std::string stem_of(const DdpResult& result) {
  return file_stem(result.c) + (result.recorded ? "_recorded" : "");
}

const DdpRun* find_run(const DdpResult& result, const std::string& contestant) {
  for (const DdpRun& run : result.runs) {
    if (run.contestant == contestant && run.has_times()) return &run;
  }
  return nullptr;
}

// The fastest of those whose name begins so; null without one.
const DdpRun* fastest(const DdpResult& result, const std::string& prefix) {
  const DdpRun* best = nullptr;
  for (const DdpRun& run : result.runs) {
    if (!run.has_times() || run.contestant.rfind(prefix, 0) != 0) continue;
    if (best == nullptr || run.median() < best->median()) best = &run;
  }
  return best;
}

double added_percent(const DdpResult& result, const DdpRun& run) {
  const DdpRun* none = find_run(result, "none");
  return none == nullptr ? kNothing : 100 * (run.median() / none->median() - 1);
}

double added_memory_percent(const DdpResult& result, const DdpRun& run) {
  const DdpRun* none = find_run(result, "none");
  return none == nullptr ? kNothing : 100 * (run.peak_bytes / none->peak_bytes - 1);
}

Cell text_or_nothing(const std::string& text) { return text.empty() ? Cell() : Cell(text); }

Cell measured(double value, double factor = 1) {
  return value >= 0 || std::isnan(value) ? Cell(value * factor) : Cell();
}

// The most that weights may differ in, as a share of the largest movement. Two ranks' sums have one
// order and halving is exact: only what kernels round differently from call to call is left. From
// three on sums round in another order; in bf16 a weight on the edge of two values then falls to
// the other side in the second step (2^-9).
double weight_tolerance(const ParallelCase& c) { return c.precision == "fp32" ? 1e-3 : 2e-2; }

// "bucketed 25 MB nccl"; a size that was chosen comes with its unit.
std::string with_unit(const DdpRun& run) {
  const std::string name = run.name();
  if (name != run.contestant) return name;
  const size_t size = name.find(' ') + 1;  // of wrappers that have one
  const size_t end = std::min(name.find(' ', size), name.size());
  return name.substr(0, end) + " MB" + name.substr(end);
}

// What a bucketed step may add to the one of a single process, in percent: bars for this size on
// GPUs.
double step_bar_percent(const ParallelCase& c) {
  if (c.device != "cuda" || c.model != "xl") return kNothing;
  return c.precision == "bf16" ? 8 : 5;
}

void judge_speed(const DdpResult& result, std::vector<std::string>& sentences) {
  const DdpRun *ours = fastest(result, "bucketed"), *torch = fastest(result, "torch");
  if (ours == nullptr) return;
  const double added = added_percent(result, *ours), bar = step_bar_percent(result.c);
  std::string sentence =
      str(case_of(result), ": ", with_unit(*ours), " adds ", fixed(added, 1), " % to the step");
  if (!std::isnan(bar))
    sentence += str(" (bar ", fixed(bar, 0), " %: ", standing(added <= bar), ")");
  if (torch != nullptr) {
    const double ratio = torch->median() / ours->median();
    sentence += str(", torch ", fixed(added_percent(result, *torch), 1), " %: ", fixed(ratio, 3),
                    " x torch's speed");
    // On a CPU that is the bar; the grain of two cores' clocks is a percent.
    if (result.c.device == "cpu")
      sentence += str(" (bar 1 less a percent: ", standing(ratio >= 0.99), ")");
  }
  sentences.push_back(sentence + ".");
}

void judge_hiding_and_memory(const DdpResult& result, std::vector<std::string>& sentences) {
  const DdpRun* ours = fastest(result, "bucketed");
  if (ours == nullptr || result.c.device != "cuda") return;
  if (ours->communication >= 0) {
    std::string sentence =
        str(case_of(result), ": ", fixed(100 * ours->hidden, 1),
            " % of the communication hidden (bar 90: ", standing(ours->hidden >= 0.9), ")");
    if (!ours->waited.empty() && ours->communication > 0) {
      const double waited = measure::median(ours->waited);
      sentence += str("; without the profiler, which slows the host down, a step waits ",
                      fixed(1e3 * waited, 2), " ms for gradients when backward is done: ",
                      fixed(100 * (1 - waited / ours->communication), 1), " % hidden");
    }
    sentences.push_back(sentence + ".");
  }
  const double memory = added_memory_percent(result, *ours);
  if (std::isnan(memory)) return;
  sentences.push_back(str(case_of(result), ": peak memory of ", with_unit(*ours), " ",
                          fixed(memory, 2),
                          " % above a single process's (bar 2: ", standing(memory <= 2), ")."));
}

std::string judge_weights(const std::vector<DdpResult>& results) {
  int compared = 0, wrong = 0;
  for (const DdpResult& result : results) {
    for (const DdpRun& run : result.runs) {
      if (run.weight_error < 0) continue;
      ++compared;
      if (!(run.weight_error <= weight_tolerance(result.c))) ++wrong;
    }
  }
  if (compared == 0) return "Verdict: no weights were compared.";
  if (wrong > 0) return str("Verdict: WRONG weights in ", wrong, " of ", compared, " runs.");
  return str("Verdict: the weights of all ", compared, " compared runs are a single process's.");
}

void add_bars(const DdpResult& result, const std::string& stem, const std::string& footnote,
              std::vector<NamedPicture>& pictures) {
  measure::Plot plot;
  plot.title = "A training step in its parts";
  plot.subtitle = case_of(result) + "; backward ends when every gradient is the mean";
  plot.footnote = footnote;
  plot.y.label = "ms";
  const std::pair<const char*, std::vector<double> DdpRun::*> parts[] = {
      {"forward", &DdpRun::forward},
      {"backward", &DdpRun::backward},
      {"optimizer", &DdpRun::optimizer},
      {"step", &DdpRun::total}};
  for (const auto& [name, values] : parts) {
    measure::Series series{.name = name, .kind = measure::Series::Kind::kBars};
    for (const DdpRun& run : result.runs) series.y.push_back(measure::median(run.*values) * 1e3);
    plot.series.push_back(std::move(series));
  }
  for (const DdpRun& run : result.runs) plot.categories.push_back(run.name());
  pictures.push_back({stem + "_parts", std::move(plot)});
}

void add_lanes(const DdpResult& result, const std::string& stem, const std::string& footnote,
               std::vector<NamedPicture>& pictures) {
  measure::LaneChart chart;
  chart.title = "What runs when in a training step";
  chart.subtitle = case_of(result) + "; rank 0 under the profiler, which slows the host down";
  chart.footnote = footnote;
  const DdpRun *bucketed = fastest(result, "bucketed"), *torch = fastest(result, "torch");
  for (const DdpRun& run : result.runs) {
    const bool drawn = run.contestant == "naive" || run.contestant == "overlapped" ||
                       &run == bucketed || &run == torch;
    if (!drawn || run.communication < 0) continue;
    chart.groups.push_back(lanes_of(run.trace, str(run.name(), ": ", fixed(100 * run.hidden, 1),
                                                   " % of the communication hidden")));
  }
  if (!chart.groups.empty()) pictures.push_back({stem + "_lanes", std::move(chart)});
}

// Every step as a point: the host holds up those that begin with hardly any lead.
void add_leads(const DdpResult& result, const std::string& stem, const std::string& footnote,
               std::vector<NamedPicture>& pictures) {
  measure::Plot plot;
  plot.title = "Steps, by how far the host was ahead of them";
  plot.subtitle = case_of(result) + "; rank 0";
  plot.footnote = footnote;
  plot.x.label = "time between the launch of a step's first kernel and its start, ms";
  plot.y.label = "step, ms";
  for (const DdpRun& run : result.runs) {
    if (run.lead.size() != run.total.size() || run.lead.empty()) continue;
    measure::Series series{.name = run.name(), .kind = measure::Series::Kind::kPoints};
    for (size_t i = 0; i < run.lead.size(); ++i) {
      series.x.push_back(1e3 * run.lead[i]);
      series.y.push_back(1e3 * run.total[i]);
    }
    plot.series.push_back(std::move(series));
  }
  if (!plot.series.empty()) pictures.push_back({stem + "_leads", std::move(plot)});
}

}  // namespace

measure::Table ddp_table(const std::vector<DdpResult>& results) {
  measure::Table table;
  table.title = "Data parallelism: a training step";
  const auto recorded = [](const DdpResult& result) { return result.recorded; };
  if (std::any_of(results.begin(), results.end(), recorded)) table.title += ", recorded";
  table.columns = case_columns();
  for (const measure::Column& column :
       {measure::text_column("wrapper"), number_column("forward", "ms", 2),
        number_column("backward", "ms", 2), number_column("waited", "ms", 2),
        number_column("optimizer", "ms", 2), number_column("step", "ms", 2),
        number_column("p10", "ms", 2), number_column("p90", "ms", 2),
        number_column("slowest", "ms", 2), number_column("first", "ms", 2),
        number_column("lead", "ms", 2), number_column("added", "%", 1),
        number_column("communication", "ms", 2), number_column("exposed", "ms", 2),
        number_column("hidden", "%", 1), number_column("peak memory", "GiB", 3),
        number_column("added memory", "%", 2),
        measure::Column{
            "weights", "", measure::Align::kRight, {measure::NumberFormat::Style::kScientific, 1}},
        // Behind the numbers: what stands before them is what rows of two reports are known by.
        measure::text_column("by")}) {
    table.columns.push_back(column);
  }
  for (const DdpResult& result : results) {
    for (const DdpRun& run : result.runs) {
      std::vector<Cell> cells = case_cells(result.c);
      const auto median_ms = [&](const std::vector<double>& seconds) {
        return seconds.empty() ? Cell() : Cell(1e3 * measure::median(seconds));
      };
      const auto quantile_ms = [&](double q) {
        return run.has_times() ? Cell(1e3 * measure::quantile(run.total, q)) : Cell();
      };
      const std::string trouble = run.trouble.substr(0, run.trouble.find(':'));
      for (const Cell& cell :
           {Cell(run.name()), median_ms(run.forward), median_ms(run.backward),
            median_ms(run.waited), median_ms(run.optimizer),
            trouble.empty() ? median_ms(run.total) : Cell(trouble), quantile_ms(0.1),
            quantile_ms(0.9), median_ms(run.slowest), median_ms(run.first), median_ms(run.lead),
            run.has_times() ? finite(added_percent(result, run)) : Cell(),
            measured(run.communication, 1e3), measured(run.exposed, 1e3),
            run.communication > 0 ? finite(100 * run.hidden) : Cell(),
            run.has_times() ? Cell(run.peak_bytes / kGiB) : Cell(),
            run.has_times() ? finite(added_memory_percent(result, run)) : Cell(),
            measured(run.weight_error), text_or_nothing(run.transport)}) {
        cells.push_back(cell);
      }
      table.add_row(std::move(cells));
    }
  }
  return table;
}

std::vector<std::string> ddp_verdict(const std::vector<DdpResult>& results) {
  std::vector<std::string> sentences;
  for (const DdpResult& result : results) {
    judge_speed(result, sentences);
    judge_hiding_and_memory(result, sentences);
  }
  sentences.push_back(judge_weights(results));
  return sentences;
}

std::vector<NamedPicture> ddp_pictures(const std::vector<DdpResult>& results,
                                       const std::string& footnote) {
  std::vector<NamedPicture> pictures;
  for (const DdpResult& result : results) {
    add_bars(result, stem_of(result), footnote, pictures);
    add_lanes(result, stem_of(result), footnote, pictures);
    if (!result.recorded) add_leads(result, stem_of(result), footnote, pictures);
  }
  return pictures;
}

}  // namespace flashstep::report
