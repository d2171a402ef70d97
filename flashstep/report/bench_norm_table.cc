// The results of `flashstep bench norm` as a table, sentences and pictures.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/measure/limits.h"
#include "flashstep/report/account_text.h"
#include "flashstep/report/bench_norm.h"

namespace flashstep::report {
namespace {

using measure::Cell;

bool is_same_norm_case(const NormCase& a, const NormCase& b) {
  return a.rows == b.rows && a.width == b.width && a.dtype == b.dtype && a.pass == b.pass;
}

// The run of this contestant in the same case; none if it was not asked for.
const NormRun* rival_of(const NormRun& run, const std::string& name,
                        const std::vector<NormRun>& runs) {
  for (const NormRun& other : runs) {
    if (other.contestant == name && is_same_norm_case(other.c, run.c)) return &other;
  }
  return nullptr;
}

double times_as_fast_as(const NormRun& run, const std::string& name,
                        const std::vector<NormRun>& runs) {
  const NormRun* other = rival_of(run, name, runs);
  return other == nullptr ? std::nan("") : other->median() / run.median();
}

measure::Column error_column(const char* name) {
  return {name, "", measure::Align::kRight, {measure::NumberFormat::Style::kScientific, 1}};
}

double gigabytes_per_s(const NormRun& run) { return norm_bytes(run.c) / run.median() / 1e9; }

}  // namespace

std::string norm_failure(const std::vector<NormRun>& runs) {
  for (const NormRun& run : runs) {
    if (run.contestant != "flashstep") continue;
    const std::string what = str("[bench norm] ", run.c.rows, " x ", run.c.width, ", ", run.c.dtype,
                                 ", ", run.c.pass, ": ");
    if (run.trouble.starts_with("failed")) return what + run.trouble;
    const double most = norm_tolerance(run.c.dtype);
    if (run.trouble.empty() && !(run.error <= most && run.gradient_error <= most)) {
      return str(what, "expected errors of at most ", most, ", got ", run.error, " and ",
                 run.gradient_error);
    }
  }
  return "";
}

measure::Table norm_table(const std::vector<NormRun>& runs, const std::string& device) {
  measure::Table table;
  table.title = str("Norms of rows on the ", device == "cuda" ? "GPU" : "CPU");
  table.columns = {measure::integer_column("rows"),
                   measure::integer_column("width"),
                   measure::text_column("dtype"),
                   measure::text_column("pass"),
                   measure::text_column("contestant"),
                   significant_column("median", "ms", 4),
                   significant_column("p10", "ms", 4),
                   significant_column("p90", "ms", 4),
                   measure::integer_column("calls"),
                   significant_column("traffic", "MB", 4),
                   significant_column("rate", "GB/s"),
                   measure::number_column("of limit", "%", 1),
                   measure::number_column("x naive", "", 2),
                   error_column("error"),
                   error_column("gradient error")};
  const double limit = runs.empty() ? 0 : measure::memory_limit_bytes_per_s(device);
  for (const NormRun& run : runs) {
    std::vector<Cell> cells = {run.c.rows, run.c.width, run.c.dtype, run.c.pass, run.contestant};
    if (run.seconds.empty()) {
      const bool memory = run.trouble.starts_with("OOM");
      cells.push_back(memory ? Cell("OOM") : run.trouble.empty() ? Cell() : Cell("failed"));
      cells.resize(table.columns.size());
    } else {
      const double ratio = times_as_fast_as(run, "naive", runs), rate = gigabytes_per_s(run);
      cells.insert(cells.end(), {run.median() * 1e3, measure::quantile(run.seconds, 0.1) * 1e3,
                                 measure::quantile(run.seconds, 0.9) * 1e3, run.seconds.size(),
                                 norm_bytes(run.c) / 1e6, rate, 100 * rate * 1e9 / limit,
                                 std::isnan(ratio) ? Cell() : Cell(ratio), run.error,
                                 run.has_gradients() ? Cell(run.gradient_error) : Cell()});
    }
    table.add_row(std::move(cells));
  }
  table.notes.emplace_back(
      "flashstep: our rms_norm; naive: its formula in tensor operations; libtorch: at::rms_norm; "
      "compiled: the formula through torch.compile, in a process of Python; layer_norm: "
      "at::layer_norm. forward: without a graph for backward; forward-backward: with the gradients "
      "of x, the weight and the bias. Traffic: the least that must pass through memory (x read, y "
      "written; backward x and dy read, dx written). Limit: of memory, measured; a case that fits "
      "into the caches may pass it. Errors: the largest distance from float64, over the root mean "
      "square.");
  if (device == "cuda")
    table.notes.emplace_back("On a GPU our rms_norm is the formula: a kernel is not written yet.");
  for (const NormRun& run : runs) {
    if (!run.trouble.empty())
      table.notes.push_back(str(run.c.rows, " x ", run.c.width, ", ", run.c.dtype, ", ", run.c.pass,
                                ", ", run.contestant, ": ", run.trouble, "."));
  }
  return table;
}

std::vector<std::string> norm_verdict(const std::vector<NormRun>& runs) {
  std::vector<std::string> sentences;
  for (const std::string& peer : norm_contestants()) {
    std::vector<double> ratios;
    for (const NormRun& run : runs) {
      const double ratio = run.contestant == "flashstep" && peer != "flashstep"
                               ? times_as_fast_as(run, peer, runs)
                               : std::nan("");
      if (!std::isnan(ratio)) ratios.push_back(ratio);
    }
    if (ratios.empty()) continue;
    const double worst = *std::min_element(ratios.begin(), ratios.end());
    sentences.push_back(str("Verdict: flashstep is ", worst >= 1 ? "at least" : "NOT everywhere",
                            " as fast as ", peer, "; at worst ", fixed(worst, 2),
                            " times, in the geometric mean of ", ratios.size(), " cases ",
                            fixed(measure::geometric_mean(ratios), 2), " times."));
  }
  return sentences;
}

// GB/s by width, a picture a dtype and pass.
std::vector<NamedPicture> norm_pictures(const std::vector<NormRun>& runs, const std::string& device,
                                        const std::string& footnote) {
  std::vector<NamedPicture> pictures;
  std::vector<std::string> names;  // "fp32_forward", in the order of the runs
  for (const NormRun& run : runs) {
    const std::string name = str(run.c.dtype, "_", run.c.pass);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  for (const std::string& name : names) {
    measure::Plot plot;
    plot.footnote = footnote;
    plot.y.label = "GB/s";
    plot.references.push_back({measure::memory_limit_bytes_per_s(device) / 1e9, "memory's limit"});
    for (const std::string& contestant : norm_contestants()) {
      measure::Series series{.name = contestant, .kind = measure::Series::Kind::kBars};
      for (const NormRun& run : runs) {
        if (run.contestant != contestant || str(run.c.dtype, "_", run.c.pass) != name) continue;
        plot.title = str("Norms, ", run.c.pass, ": the least traffic over the time");
        plot.subtitle = str(run.c.rows, " rows, ", run.c.dtype, "; medians");
        series.y.push_back(gigabytes_per_s(run));
        series.labels.push_back(run.seconds.empty() ? (run.trouble.starts_with("OOM") ? "OOM" : "-")
                                                    : fixed(gigabytes_per_s(run), 0));
        const std::string width = str("width ", run.c.width);
        if (std::find(plot.categories.begin(), plot.categories.end(), width) ==
            plot.categories.end())
          plot.categories.push_back(width);
      }
      if (!series.y.empty()) plot.series.push_back(std::move(series));
    }
    pictures.push_back({name, std::move(plot)});
  }
  return pictures;
}

}  // namespace flashstep::report
