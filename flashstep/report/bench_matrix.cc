#include "flashstep/report/bench_matrix.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/bench_words.h"
#include "flashstep/report/rank_jobs.h"
#include "flashstep/report/units.h"

namespace flashstep::report {
namespace {

using measure::Cell;
using measure::number_column;

const char* kHowToReadMatrix =
    "A step: batch rows a rank, clipping to norm 1, AdamW. Epoch: time of a step times its steps. "
    "Tokens/s: of all ranks. Speed-up: tokens/s over those of one process without wrapper and the "
    "same attention. Memory: the peak of the rank with most. Loss: of the validation file after "
    "the last epoch, nats a token; ranks share the steps of an epoch, so that more of them make "
    "fewer updates.";

const MatrixRun* find_run(const std::vector<MatrixRun>& runs, const std::string& attention,
                          const std::string& wrapper) {
  for (const MatrixRun& run : runs) {
    if (run.attention() == attention && run.wrapper() == wrapper && run.has_times()) return &run;
  }
  return nullptr;
}

double speed_up(const std::vector<MatrixRun>& runs, const MatrixRun& run) {
  const MatrixRun* none = find_run(runs, run.attention(), "none");
  if (none == nullptr || !run.has_times()) return kNothing;
  return run.tokens_per_second() / none->tokens_per_second();
}

// The distinct ones, in their first order.
template <typename Part>
std::vector<std::string> distinct(const std::vector<MatrixRun>& runs, const Part& part) {
  std::vector<std::string> names;
  for (const MatrixRun& run : runs) {
    if (std::find(names.begin(), names.end(), part(run)) == names.end()) names.push_back(part(run));
  }
  return names;
}
std::vector<std::string> attentions(const std::vector<MatrixRun>& runs) {
  return distinct(runs, [](const MatrixRun& run) { return run.attention(); });
}
std::vector<std::string> wrappers(const std::vector<MatrixRun>& runs) {
  return distinct(runs, [](const MatrixRun& run) { return run.wrapper(); });
}

template <typename Value>
measure::Plot bars(const std::vector<MatrixRun>& runs, const std::string& title,
                   const std::string& unit, const Value& value) {
  measure::Plot plot;
  plot.title = title;
  plot.y.label = unit;
  plot.categories = wrappers(runs);
  for (const std::string& attention : attentions(runs)) {
    measure::Series series{.name = attention, .kind = measure::Series::Kind::kBars};
    for (const std::string& wrapper : plot.categories) {
      const MatrixRun* run = find_run(runs, attention, wrapper);
      series.y.push_back(run == nullptr ? kNothing : value(*run));
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

measure::HeatMap speed_up_map(const std::vector<MatrixRun>& runs) {
  measure::HeatMap map;
  map.title = "Speed-up by wrapper";
  map.x_label = "wrapper";
  map.y_label = "attention";
  map.rows = attentions(runs);
  map.columns = wrappers(runs);
  for (const std::string& attention : map.rows) {
    for (const std::string& wrapper : map.columns) {
      const MatrixRun* run = find_run(runs, attention, wrapper);
      map.values.push_back(run == nullptr ? kNothing : speed_up(runs, *run));
    }
  }
  return map;
}

// The cells that so many ranks measure: a single process those without wrapper.
std::vector<std::string> contestants_of(const BenchMatrixOptions& options, bool single) {
  std::vector<std::string> names;
  for (const std::string& attention : options.attention) {
    for (const std::string& wrapper : division_names(options.wrappers, options.bucket_megabytes)) {
      if ((wrapper == "none") == single) names.push_back(attention + " " + wrapper);
    }
  }
  return names;
}

std::vector<MatrixRun> measure_ranks(const BenchMatrixOptions& options, ParallelCase c, bool single,
                                     BenchReport& report) {
  MatrixPlan plan = options.plan;
  if (single) c.ranks = 1;
  plan.c = c;
  plan.contestants = contestants_of(options, single);
  if (plan.contestants.empty()) return {};
  const JobResults job = run_plan("matrix", plan, options.progress);
  note_end(job, c, report);
  std::vector<MatrixRun> runs = matrix_runs(plan, job.handed_over);
  put_failures(job.failures, runs);
  return runs;
}

}  // namespace

double MatrixRun::tokens_per_second() const { return tokens_per_step / measure::median(steps); }
std::string MatrixRun::attention() const { return contestant.substr(0, contestant.find(' ')); }
std::string MatrixRun::wrapper() const {
  return shown_name(contestant.substr(contestant.find(' ') + 1), bucket_megabytes);
}

BenchMatrixOptions matrix_preset(const std::string& year) {
  BenchMatrixOptions options;
  if (year == "2024") {
    options.axes.models = {"small"};
    options.axes.batch_size = 16;
  } else if (year == "2025") {
    options.axes.models = {"xl"};
    options.axes.contexts = {256};
  } else {
    require(year == "2026", "[bench matrix] expected preset 2024, 2025 or 2026, got \"", year,
            "\"");
    options.axes.models = {"xl26"};
    options.axes.contexts = {512};
  }
  return options;
}

measure::Table matrix_table(const std::vector<MatrixRun>& runs) {
  measure::Table table;
  table.title = "Attention x data parallelism";
  table.columns = {measure::text_column("attention"),
                   measure::text_column("wrapper"),
                   measure::integer_column("ranks"),
                   number_column("step", "ms", 2),
                   number_column("p10", "ms", 2),
                   number_column("p90", "ms", 2),
                   number_column("epoch", "s", 2),
                   number_column("tokens", "1/s", 0),
                   number_column("speed-up", "", 2),
                   number_column("peak memory", "GiB", 3),
                   number_column("validation loss", "nats", 4)};
  for (const MatrixRun& run : runs) {
    std::vector<Cell> cells = {run.attention(), run.wrapper(), run.ranks};
    if (!run.has_times()) {
      cells.emplace_back(run.trouble.substr(0, run.trouble.find(':')));
      cells.resize(table.columns.size());
      table.add_row(std::move(cells));
      continue;
    }
    const double step = measure::median(run.steps);
    for (const Cell& cell :
         {Cell(1e3 * step), Cell(1e3 * measure::quantile(run.steps, 0.1)),
          Cell(1e3 * measure::quantile(run.steps, 0.9)), Cell(step * run.epoch_steps),
          Cell(run.tokens_per_second()), finite(speed_up(runs, run)), Cell(run.peak_bytes / kGiB),
          Cell(run.validation_loss.back())}) {
      cells.push_back(cell);
    }
    table.add_row(std::move(cells));
  }
  return table;
}

std::vector<NamedPicture> matrix_pictures(const std::vector<MatrixRun>& runs,
                                          const std::string& subtitle,
                                          const std::string& footnote) {
  std::vector<NamedPicture> pictures = {
      {"time", bars(runs, "Time of a training step", "ms",
                    [](const MatrixRun& run) { return 1e3 * measure::median(run.steps); })},
      {"memory", bars(runs, "Peak memory", "GiB",
                      [](const MatrixRun& run) { return run.peak_bytes / kGiB; })},
      {"throughput", bars(runs, "Tokens a second, all ranks", "tokens/s",
                          [](const MatrixRun& run) { return run.tokens_per_second(); })},
      {"speedup", speed_up_map(runs)}};
  for (NamedPicture& named : pictures) {
    std::visit(
        [&](auto& picture) {
          picture.subtitle = subtitle;
          picture.footnote = footnote;
        },
        named.picture);
  }
  return pictures;
}

BenchReport bench_matrix(const BenchMatrixOptions& options) {
  const double begin = measure::steady_seconds();
  const std::vector<ParallelCase> cases = cases_of(options.axes);
  for (const ParallelCase& c : cases)
    check_transports(division_names(options.wrappers, options.bucket_megabytes), c.device);
  require(cases.size() == 1,
          "[bench matrix] expected one model, context, precision and number of "
          "ranks, got ",
          cases.size(), " combinations");
  BenchReport report;
  std::vector<MatrixRun> runs;
  for (const bool single : {true, false}) {
    if (report.signal != 0) break;
    for (MatrixRun& run : measure_ranks(options, cases[0], single, report))
      runs.push_back(std::move(run));
  }
  // Each attention's wrappers beside each other.
  const std::vector<std::string> order = options.attention;
  std::stable_sort(runs.begin(), runs.end(), [&](const MatrixRun& a, const MatrixRun& b) {
    return std::find(order.begin(), order.end(), a.attention()) <
           std::find(order.begin(), order.end(), b.attention());
  });
  report.table = matrix_table(runs);
  auto& notes = report.table.notes;
  for (const MatrixRun& run : runs) {
    if (!run.trouble.empty()) notes.push_back(str(run.contestant, ": ", run.trouble, "."));
  }
  notes.emplace_back(kHowToReadMatrix);
  const std::string machine = measure::one_line(measure::describe_machine());
  notes.push_back(
      str(describe(cases[0]), "; ", options.plan.train, ", ", options.plan.epochs,
          options.plan.epochs == 1 ? " epoch" : " epochs",
          options.plan.most_steps > 0 ? str(" of at most ", options.plan.most_steps, " steps") : "",
          "; ", machine, "; ", human_seconds(measure::steady_seconds() - begin), "."));
  report.pictures = matrix_pictures(runs, describe(cases[0]), "flashstep bench matrix; " + machine);
  return report;
}

}  // namespace flashstep::report
