#include <algorithm>

#include "flashstep/base/text.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/precision_sizes.h"

namespace flashstep::report {
namespace {

using Part = std::vector<double> PrecisionTimes::*;
constexpr Part kForward = &PrecisionTimes::forward, kBackward = &PrecisionTimes::backward;

double median_ms(const SizeResult& result, size_t precision, Part part) {
  return 1e3 * measure::median(result.times[precision].*part);
}

double gain(const SizeResult& result, Part part) {
  return median_ms(result, 0, part) / median_ms(result, 1, part);
}

measure::Column error_column(const char* name) {
  return {name, "", measure::Align::kRight, {measure::NumberFormat::Style::kScientific, 1}};
}

measure::Table sizes_table(const std::vector<SizeResult>& results,
                           const PrecisionSizesOptions& options) {
  measure::Table table;
  table.title = str("bf16 (autocast) beside fp32: batch ", options.batch_size, ", context ",
                    options.context_length, ", ", options.device);
  table.columns = {measure::text_column("model"),
                   measure::number_column("fp32 forward", "ms", 2),
                   measure::number_column("fp32 backward", "ms", 2),
                   measure::number_column("bf16 forward", "ms", 2),
                   measure::number_column("bf16 backward", "ms", 2),
                   measure::number_column("gain forward", "x", 2),
                   measure::number_column("gain backward", "x", 2),
                   error_column("loss error"),
                   error_column("logits error"),
                   error_column("gradient error")};
  for (const SizeResult& r : results) {
    if (!r.has_times()) {
      std::vector<measure::Cell> row(table.columns.size());
      row[0] = r.name;
      row[1] = r.failure.empty() ? "not measured" : r.failure;
      table.add_row(std::move(row));
      continue;
    }
    table.add_row({r.name, median_ms(r, 0, kForward), median_ms(r, 0, kBackward),
                   median_ms(r, 1, kForward), median_ms(r, 1, kBackward), gain(r, kForward),
                   gain(r, kBackward), r.loss_error, r.logits_error, r.gradient_error});
  }
  return table;
}

measure::Table runs_table(const std::vector<SizeResult>& results) {
  measure::Table table;
  table.title = "bf16 beside fp32: all passes";
  table.columns = {measure::text_column("model"),
                   measure::text_column("precision"),
                   measure::text_column("pass"),
                   measure::integer_column("passes"),
                   measure::number_column("mean", "ms", 3),
                   measure::number_column("deviation", "ms", 3),
                   measure::number_column("median", "ms", 3),
                   measure::number_column("p10", "ms", 3),
                   measure::number_column("p90", "ms", 3)};
  const auto add = [&](const SizeResult& r, size_t precision, const char* pass,
                       const std::vector<double>& seconds) {
    if (seconds.empty()) return;
    const measure::Summary s = measure::summarize(seconds);
    table.add_row({r.name, kPrecisions[precision], pass, s.count, 1e3 * s.mean, 1e3 * s.stddev,
                   1e3 * s.median, 1e3 * s.p10, 1e3 * s.p90});
  };
  for (const SizeResult& r : results) {
    for (size_t precision = 0; precision < 2; ++precision) {
      add(r, precision, "forward", r.times[precision].forward);
      add(r, precision, "backward", r.times[precision].backward);
    }
  }
  return table;
}

double whole_gain(const SizeResult& r) {
  return (median_ms(r, 0, kForward) + median_ms(r, 0, kBackward)) /
         (median_ms(r, 1, kForward) + median_ms(r, 1, kBackward));
}

// How one model fares, and which way that goes with the size.
std::string verdict(const std::vector<SizeResult>& measured) {
  const double first = whole_gain(measured.front()), last = whole_gain(measured.back());
  std::string sentence = str("Verdict: forward and backward of ", measured.front().name);
  sentence += first >= 1 ? str(" are ", fixed(first, 2), " times as fast in bf16 as in fp32")
                         : str(" take ", fixed(1 / first, 2), " times as LONG in bf16 as in fp32");
  if (measured.size() > 1) {
    const char* way = last > 1.05 * first ? "grows" : first > 1.05 * last ? "shrinks" : "stays";
    sentence += str(", ", measured.back().name, " ", fixed(last, 2), " times as fast: the gain ",
                    way, " with the size");
  }
  return sentence + ".";
}

measure::Plot gain_plot(const std::vector<SizeResult>& measured) {
  measure::Plot plot;
  plot.title = "bf16 (autocast) beside fp32";
  plot.x = {.label = "parameters", .scale = measure::Scale::kLog, .limits = {}};
  plot.y = {.label = "fp32's time over bf16's", .scale = {}, .limits = {}};
  plot.references = {{1, "as fast", false}};
  for (const Part part : {kForward, kBackward}) {
    measure::Series series{.name = part == kForward ? "forward" : "backward",
                           .kind = measure::Series::Kind::kLineAndPoints};
    for (const SizeResult& r : measured) {
      series.x.push_back(r.parameters);
      series.y.push_back(gain(r, part));
    }
    plot.series.push_back(std::move(series));
  }
  plot.footnote = measure::one_line(measure::describe_machine());
  return plot;
}

}  // namespace

BenchReport precision_sizes_report(const std::vector<SizeResult>& results,
                                   const PrecisionSizesOptions& options) {
  BenchReport report;
  report.table = sizes_table(results, options);
  report.runs = runs_table(results);
  report.table.notes.push_back(str(
      "Weights are float32 in both; medians of ", options.steps, " passes after ", options.warmup,
      ", the two in turns, the host waiting after each pass. Errors: distance "
      "from fp32 at the same weights and tokens over fp32's size (loss: absolute values, "
      "logits and gradient: norms). ",
      measure::one_line(measure::describe_machine()), "."));
  std::vector<SizeResult> measured;
  for (const SizeResult& r : results)
    if (r.has_times()) measured.push_back(r);
  if (!measured.empty()) report.table.notes.push_back(verdict(measured));
  if (measured.size() > 1) report.pictures.push_back({"gain", gain_plot(measured)});
  return report;
}

}  // namespace flashstep::report
