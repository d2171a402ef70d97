// The results of `flashstep bench allreduce` as tables, sentences and pictures.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "flashstep/base/text.h"
#include "flashstep/measure/stats.h"
#include "flashstep/report/bench_allreduce.h"
#include "flashstep/report/bench_words.h"

namespace flashstep::report {
namespace {

using measure::Cell;
using measure::Series;
using AllreduceResults = std::vector<AllreduceResult>;

// The bars: from here on at NCCL's own speed, below a few microseconds for c10d and the watch.
constexpr double kLargeBytes = 100e6, kLeastShare = 0.97, kMostAboveSeconds = 10e-6;

const AllreduceRun* find_run(const AllreduceResult& result, const char* contestant) {
  for (const AllreduceRun& run : result.runs) {
    if (run.contestant == contestant && !run.seconds.empty()) return &run;
  }
  return nullptr;
}

double time_of(const AllreduceRun& run) { return measure::median(run.seconds); }

double megabytes(const AllreduceCase& c) { return static_cast<double>(c.bytes) / 1e6; }

std::vector<Cell> allreduce_cells(const AllreduceCase& c) {
  return {c.backend, c.device, c.dtype, c.ranks, megabytes(c)};
}

std::vector<measure::Column> allreduce_columns() {
  return {measure::text_column("backend"),
          measure::text_column("device"),
          measure::text_column("dtype"),
          measure::integer_column("ranks"),
          {"size", "MB", measure::Align::kRight, {measure::NumberFormat::Style::kSignificant, 4}}};
}

measure::Column time_column(const std::string& name) {
  return measure::number_column(name, "ms", 4);
}

// Of the NCCL rows with both contestants.
struct Bars {
  int64_t large = 0, large_kept = 0, small = 0, small_kept = 0;
  double worst_share = INFINITY, most_above = -INFINITY, most_above_alone = -INFINITY;
};

Bars bars_of(const AllreduceResults& results) {
  Bars bars;
  for (const AllreduceResult& result : results) {
    const AllreduceRun *ours = find_run(result, "flashstep"), *bare = find_run(result, "bare");
    if (result.c.backend != "nccl" || ours == nullptr || bare == nullptr) continue;
    if (static_cast<double>(result.c.bytes) >= kLargeBytes) {
      const double share = time_of(*bare) / time_of(*ours);
      ++bars.large;
      bars.large_kept += share >= kLeastShare;
      bars.worst_share = std::min(bars.worst_share, share);
    } else {
      const double above = time_of(*ours) - time_of(*bare);
      ++bars.small;
      bars.small_kept += above <= kMostAboveSeconds;
      bars.most_above = std::max(bars.most_above, above);
      bars.most_above_alone = std::max(bars.most_above_alone,
                                       measure::median(ours->alone) - measure::median(bare->alone));
    }
  }
  return bars;
}

// "nccl, 4 ranks", and the device where a backend has two.
std::string line_name(const AllreduceCase& c) {
  return str(c.backend, c.backend == "gloo" && c.device == "cuda" ? " (GPU)" : "", ", ", c.ranks,
             " ranks");
}

// Lines of ours, and dashed ones of the bare library, over the sizes.
template <typename Value>
void add_lines(measure::Plot& plot, const AllreduceResults& results, const Value& value) {
  std::vector<std::string> names;
  for (const AllreduceResult& result : results) {
    const std::string name = line_name(result.c);
    if (find_run(result, "flashstep") == nullptr) continue;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  for (const char* contestant : {"flashstep", "bare"}) {
    for (size_t color = 0; color < names.size(); ++color) {
      Series series;
      const bool bare = std::string(contestant) == "bare";
      series.name = names[color] + (bare ? ", bare" : "");
      series.kind = Series::Kind::kLineAndPoints;
      series.color = static_cast<int>(color);
      series.dashed = bare;
      for (const AllreduceResult& result : results) {
        const AllreduceRun* run = find_run(result, contestant);
        if (run == nullptr || line_name(result.c) != names[color]) continue;
        series.x.push_back(megabytes(result.c));
        series.y.push_back(value(result.c, time_of(*run)));
      }
      if (!series.x.empty()) plot.series.push_back(std::move(series));
    }
  }
}

}  // namespace

measure::Table allreduce_table(const AllreduceResults& results, const Links& links) {
  measure::Table table;
  table.columns = allreduce_columns();
  for (const auto& column :
       {time_column("time"), time_column("p10"), time_column("p90"), time_column("alone"),
        measure::number_column("algorithm", "GB/s", 2), measure::number_column("bus", "GB/s", 2),
        measure::number_column("of link", "%", 1), time_column("bare"), time_column("bare alone"),
        measure::number_column("x bare", "", 3), measure::number_column("above bare", "us", 1),
        measure::integer_column("wrong")}) {
    table.columns.push_back(column);
  }
  for (const AllreduceResult& result : results) {
    std::vector<Cell> cells = allreduce_cells(result.c);
    const AllreduceRun *ours = find_run(result, "flashstep"), *bare = find_run(result, "bare");
    if (ours == nullptr) {
      cells.emplace_back(result.trouble.empty() ? "failed" : result.trouble);
      cells.resize(table.columns.size());
      table.add_row(std::move(cells));
      continue;
    }
    const double time = time_of(*ours), bus = bus_bandwidth(result.c, time);
    const auto link = links.find({result.c.backend, result.c.device});
    cells.insert(cells.end(),
                 {time * 1e3, measure::quantile(ours->seconds, 0.1) * 1e3,
                  measure::quantile(ours->seconds, 0.9) * 1e3, measure::median(ours->alone) * 1e3,
                  algorithm_bandwidth(result.c, time) / 1e9, bus / 1e9,
                  link == links.end() ? Cell() : Cell(100 * bus / link->second.bytes_per_s)});
    if (bare == nullptr) {
      cells.resize(table.columns.size() - 1);
    } else {
      cells.insert(cells.end(), {time_of(*bare) * 1e3, measure::median(bare->alone) * 1e3,
                                 time_of(*bare) / time, (time - time_of(*bare)) * 1e6});
    }
    cells.emplace_back(ours->wrong);
    table.add_row(std::move(cells));
  }
  return table;
}

measure::Table allreduce_runs_table(const AllreduceResults& results) {
  measure::Table table;
  table.title = "All-reduce, by contestant";
  table.columns = allreduce_columns();
  for (const auto& column :
       {measure::text_column("contestant"), measure::integer_column("samples"),
        time_column("median"), time_column("p10"), time_column("p90"), time_column("alone"),
        time_column("alone p90"), measure::number_column("bus", "GB/s", 2),
        measure::integer_column("wrong")}) {
    table.columns.push_back(column);
  }
  for (const AllreduceResult& result : results) {
    for (const AllreduceRun& run : result.runs) {
      std::vector<Cell> cells = allreduce_cells(result.c);
      cells.insert(
          cells.end(),
          {run.contestant, run.seconds.size(), time_of(run) * 1e3,
           measure::quantile(run.seconds, 0.1) * 1e3, measure::quantile(run.seconds, 0.9) * 1e3,
           measure::median(run.alone) * 1e3, measure::quantile(run.alone, 0.9) * 1e3,
           bus_bandwidth(result.c, time_of(run)) / 1e9, run.wrong});
      table.add_row(std::move(cells));
    }
  }
  return table;
}

std::vector<std::string> allreduce_verdict(const AllreduceResults& results) {
  std::vector<std::string> sentences;
  const Bars bars = bars_of(results);
  if (bars.large > 0) {
    sentences.push_back(str("NCCL from 100 MB on: at least ", fixed(100 * bars.worst_share, 1),
                            " % of the bare loop's speed over ", bars.large,
                            " rows (bar 97 %: ", standing(bars.large_kept == bars.large), ")."));
  }
  if (bars.small > 0) {
    sentences.push_back(str(
        "NCCL below: at most ", fixed(bars.most_above * 1e6, 1), " us above the bare loop over ",
        bars.small, " rows (bar 10 us: ", standing(bars.small_kept == bars.small),
        "); calls alone at most ", fixed(bars.most_above_alone * 1e6, 1), " us."));
  }
  int64_t measured = 0, failed = 0, wrong = 0;
  std::vector<double> gloo;
  for (const AllreduceResult& result : results) {
    const AllreduceRun *ours = find_run(result, "flashstep"), *bare = find_run(result, "bare");
    measured += ours != nullptr;
    failed += result.trouble == "failed";
    for (const AllreduceRun& run : result.runs) wrong += run.wrong;
    if (result.c.backend == "gloo" && ours != nullptr && bare != nullptr) {
      gloo.push_back(time_of(*bare) / time_of(*ours));
    }
  }
  if (!gloo.empty()) {
    sentences.push_back(str("Gloo: ", fixed(measure::geometric_mean(gloo), 2),
                            " x bare in geometric mean over ", gloo.size(), " rows."));
  }
  const bool kept = wrong == 0 && failed == 0 && measured > 0 && bars.large_kept == bars.large &&
                    bars.small_kept == bars.small;
  sentences.push_back(str("Verdict: ", measured, " of ", results.size(), " cases measured, ",
                          failed, " failed, ", wrong, " wrong elements; bars ", standing(kept),
                          "."));
  return sentences;
}

std::vector<NamedPicture> allreduce_pictures(const AllreduceResults& results, const Links& links,
                                             const std::string& footnote) {
  measure::Plot bus;
  bus.title = "All-reduce: bus bandwidth";
  bus.footnote = footnote;
  bus.x = {"MB", measure::Scale::kLog, {}};
  bus.y = {"GB/s", measure::Scale::kLog, {}};
  measure::Plot time = bus;
  time.title = "All-reduce: time of a call";
  time.y.label = "ms";
  std::set<std::string> drawn;  // Gloo's transports have one link
  for (const auto& [transport, link] : links) {
    if (!drawn.insert(link.source).second) continue;
    bus.references.push_back({link.bytes_per_s / 1e9, str("link of ", transport.first), false});
  }
  add_lines(bus, results,
            [](const AllreduceCase& c, double seconds) { return bus_bandwidth(c, seconds) / 1e9; });
  add_lines(time, results, [](const AllreduceCase&, double seconds) { return seconds * 1e3; });
  if (bus.series.empty()) return {};
  return {{"bus", std::move(bus)}, {"time", std::move(time)}};
}

}  // namespace flashstep::report
