#include "flashstep/train/loss_plot.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

using Kind = measure::Series::Kind;
using Json = nlohmann::json;
constexpr size_t kFewest = 100;  // values that smoothing needs to change anything
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Appends the field of `entry`, if it is there: a number, or null for one that was not finite.
// `line`: where it stands.
void append_point(const Json& entry, const std::string& field, const std::string& line,
                  std::vector<double>& steps, std::vector<double>& values) {
  const auto it = entry.find(field);
  if (it == entry.end()) return;
  require(it->is_number() || it->is_null(), "[plot] expected a number as ", field, " in ", line,
          ", got ", printable_utf8(it->dump(-1, ' ', false, Json::error_handler_t::replace)));
  steps.push_back(entry["step"].get<double>());
  values.push_back(it->is_number() ? it->get<double>() : kNaN);
}

// "RUN/.", "RUN/" and "." name a directory that has a name of its own.
std::string run_name(const std::filesystem::path& run) {
  std::filesystem::path path = std::filesystem::absolute(run).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().string();
}

std::string axis_label(const std::string& field) {
  if (field == "loss") return "cross-entropy loss (nats/token)";
  if (field == "val_loss") return "held-out loss (nats/token)";
  if (field == "lr") return "learning rate";
  if (field == "grad_norm") return "gradient norm";
  if (field == "tokens_per_s") return "tokens/s";
  return field;
}

// "1.500": the last of `values`, with its step where that is not `last`; or "not finite since step
// 12".
std::string end_of(const std::vector<double>& steps, const std::vector<double>& values,
                   double last) {
  const auto name = [](double step) { return " step " + with_commas(std::llround(step)); };
  if (std::isfinite(values.back()))
    return fixed(values.back(), 3) + (steps.back() == last ? "" : " at" + name(steps.back()));
  size_t since = values.size() - 1;
  while (since > 0 && !std::isfinite(values[since - 1])) --since;
  return "not finite since" + name(steps[since]);
}

// One run in a sentence: where it ended.
std::string summary_of(const RunCurves& run, const std::string& field) {
  if (field != "loss" || run.steps.empty()) return "";
  const double last = run.steps.back();
  std::string text = "step " + with_commas(std::llround(last)) + ": training loss " +
                     end_of(run.steps, smoothed(run.values), last);
  if (!run.val_losses.empty())
    text += ", held-out loss " + end_of(run.val_steps, run.val_losses, last);
  return text;
}

// Batches make a curve noisy; a schedule is exact, and a short curve shows its points.
bool is_smoothed(const RunCurves& run, const std::string& field) {
  return field != "lr" && run.values.size() >= kFewest;
}

void add_run(measure::Plot& plot, const RunCurves& run, const std::string& field, bool alone,
             int color) {
  const bool smooth = is_smoothed(run, field);
  measure::Series raw{.x = run.steps, .y = run.values, .color = color, .faint = true};
  measure::Series trend{.name = run.name,
                        .x = run.steps,
                        .y = smooth ? smoothed(run.values) : run.values,
                        .color = color};
  measure::Series held_out{
      .kind = Kind::kLineAndPoints, .x = run.val_steps, .y = run.val_losses, .color = color};
  if (alone) {  // one run: its two curves have the colours, and names
    raw.name = "each step";
    trend.name =
        field == "loss" ? (smooth ? "training, smoothed" : "training") : (smooth ? "smoothed" : "");
    held_out.name = "held-out";
    held_out.color = color + 1;
  } else {  // several: the colour is the run, the dots say what is held out
    held_out.dashed = true;
  }
  if (smooth) plot.series.push_back(std::move(raw));
  for (measure::Series* series : {&trend, &held_out})
    if (!series->x.empty()) plot.series.push_back(std::move(*series));
}

}  // namespace

RunCurves parse_curves(std::string_view lines, const std::string& field,
                       const std::string& source) {
  RunCurves curves;
  int64_t number = 0;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = lines.find('\n', begin);
    if (end == std::string_view::npos) break;  // torn: a whole line ends in a line break
    const std::string_view line = lines.substr(begin, end - begin);
    begin = end + 1;
    const std::string place = str("line ", ++number, " of ", source);
    const Json entry = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    require(entry.is_object() && entry.contains("step") && entry["step"].is_number(),
            "[plot] expected a JSON object with a step in ", place, ", got \"",
            printable_utf8(line.substr(0, 60)), "\"");
    append_point(entry, field, place, curves.steps, curves.values);
    if (field == "loss")
      append_point(entry, "val_loss", place, curves.val_steps, curves.val_losses);
    const auto bigram = entry.find("bigram_loss");
    if (bigram != entry.end() && bigram->is_number()) curves.bigram_loss = *bigram;
  }
  return curves;
}

std::vector<double> smoothed(const std::vector<double>& values) {
  const auto size = static_cast<int64_t>(values.size());
  const int64_t half = size / 100;
  std::vector<double> sums(values.size() + 1, 0), counts(values.size() + 1, 0);
  for (size_t i = 0; i < values.size(); ++i) {
    const bool there = std::isfinite(values[i]);
    sums[i + 1] = sums[i] + (there ? values[i] : 0);
    counts[i + 1] = counts[i] + there;
  }
  std::vector<double> means(values.size(), kNaN);
  for (int64_t i = 0; i < size; ++i) {
    if (!std::isfinite(values[static_cast<size_t>(i)])) continue;
    const int64_t back = std::min(half, i), ahead = std::min(back, size - 1 - i);
    const auto from = static_cast<size_t>(i - back), to = static_cast<size_t>(i + ahead + 1);
    means[static_cast<size_t>(i)] = (sums[to] - sums[from]) / (counts[to] - counts[from]);
  }
  return means;
}

measure::Plot curves_plot(const std::vector<RunCurves>& runs, const std::string& field) {
  const bool alone = runs.size() == 1;
  measure::Plot plot;
  plot.x.label = "step";
  plot.y.label = axis_label(field);
  if (alone) {
    plot.title = runs[0].name;
    plot.subtitle = summary_of(runs[0], field);
  } else {
    plot.title = str(runs.size(), " runs");
  }
  bool any_held_out = false, any_smoothed = false;
  std::vector<double> bigrams;
  std::vector<std::string> first_with;  // of each bigram model the first run that has it
  for (size_t i = 0; i < runs.size(); ++i) {
    add_run(plot, runs[i], field, alone, static_cast<int>(i));
    any_smoothed |= is_smoothed(runs[i], field);
    any_held_out |= !runs[i].val_losses.empty();
    const double bigram = runs[i].bigram_loss;
    const bool known = std::any_of(bigrams.begin(), bigrams.end(),
                                   [&](double b) { return std::abs(b - bigram) < 5e-4; });
    if (field == "loss" && std::isfinite(bigram) && !known) {
      bigrams.push_back(bigram);
      plot.references.push_back({bigram, "bigram model " + fixed(bigram, 3)});
      first_with.push_back(runs[i].name);
    }
  }
  for (size_t i = 0; i < bigrams.size() && bigrams.size() > 1; ++i)
    plot.references[i].label = str("bigram model of ", first_with[i], " ", fixed(bigrams[i], 3));
  if (!alone) {  // entries that hold for all runs
    if (any_smoothed)
      plot.series.push_back({.name = "each step", .color = measure::kGrey, .faint = true});
    if (any_held_out)
      plot.series.push_back({.name = "held-out",
                             .kind = Kind::kLineAndPoints,
                             .color = measure::kGrey,
                             .dashed = true});
  }
  return plot;
}

measure::Plot plot_runs(const std::vector<std::filesystem::path>& runs, const std::string& field) {
  std::vector<RunCurves> curves;
  for (const auto& run : runs) {
    const auto path = run / "metrics.jsonl";
    require(std::filesystem::is_regular_file(path), "[plot] expected a run directory with a ",
            "metrics.jsonl, got ", run.string());
    curves.push_back(parse_curves(read_file(path), field, path.string()));
    require(!curves.back().steps.empty() || field == "loss", "[plot] expected the field \"", field,
            "\" in ", path.string(), ", got none");
    curves.back().name = run_name(run);
  }
  // Runs of one name in different folders are told apart by their paths.
  for (size_t i = 0; i < runs.size(); ++i)
    for (size_t j = 0; j < runs.size(); ++j)
      if (i != j && run_name(runs[i]) == run_name(runs[j])) curves[i].name = runs[i].string();
  return curves_plot(curves, field);
}

measure::WrittenPlot draw_loss(const std::vector<std::filesystem::path>& runs,
                               const std::filesystem::path& path_stem, double bigram_loss) {
  measure::Plot plot = plot_runs(runs, "loss");
  if (std::isfinite(bigram_loss) && plot.references.empty())
    plot.references.push_back({bigram_loss, "bigram model " + fixed(bigram_loss, 3)});
  return measure::write_plot(plot, path_stem);
}

}  // namespace flashstep
