// The results of `flashstep bench allreduce` as tables, sentences and pictures.
#include <algorithm>
#include <cmath>
#include <set>

#include "flashstep/base/text.h"
#include "flashstep/bench/allreduce.h"
#include "flashstep/bench/schema.h"
#include "flashstep/measure/gpu.h"

namespace flashstep::tools {
namespace {

using measure::Cell;

double algorithm_rate(const Record& r) { return r.number("size") * 1e6 / r.median("seconds"); }
double bus_rate(const Record& r) {
  const double n = r.number("ranks");
  return algorithm_rate(r) * 2 * (n - 1) / n;
}

measure::Column time_column(const std::string& name) {
  return measure::number_column(name, "ms", 4);
}

Schema allreduce_case_schema() {
  return {text_key("backend"),
          text_key("device"),
          text_key("dtype"),
          integer_key("ranks"),
          {significant("size", "MB"), key("size")}};
}

// What a machine lacks is said in the cell.
Cell time_or_reason(const Record& r, const Records&) {
  if (r.outcome.status == Status::kRefused) return r.outcome.why;
  if (!r.outcome.measured()) return r.outcome.word();
  return r.has("seconds") ? Cell(1e3 * r.median("seconds")) : Cell("failed");
}

Schema allreduce_schema(const Links& links) {
  const auto algorithm = [](const Record& r, const Records&) { return algorithm_rate(r) / 1e9; };
  const auto bus = [](const Record& r, const Records&) { return bus_rate(r) / 1e9; };
  const auto share = [links](const Record& r, const Records&) {
    const auto link = links.find({r.text("backend"), r.text("device")});
    return link == links.end() ? NAN : 100 * bus_rate(r) / link->second.bytes_per_s;
  };
  const auto ratio = [](const Record& r, const Records& all) {
    return times_as_fast(r, all, "bare", "seconds");
  };
  const auto above = [](const Record& r, const Records& all) {
    const Record* bare = all.find(r, "bare");
    return bare == nullptr ? NAN : 1e6 * (r.median("seconds") - bare->median("seconds"));
  };
  return allreduce_case_schema() +
         Schema{{time_column("time"), time_or_reason},
                {time_column("p10"), quantile("seconds", 0.1, 1e3)},
                {time_column("p90"), quantile("seconds", 0.9, 1e3)},
                {time_column("alone"), median("alone", 1e3)},
                {measure::number_column("algorithm", "GB/s", 2), finite(algorithm)},
                {measure::number_column("bus", "GB/s", 2), finite(bus)},
                {measure::number_column("of link", "%", 1), finite(share)},
                {time_column("bare"), of("bare", median("seconds", 1e3))},
                {time_column("bare alone"), of("bare", median("alone", 1e3))},
                {measure::number_column("x bare", "", 3), finite(ratio)},
                {measure::number_column("above bare", "us", 1), finite(above)},
                {measure::integer_column("wrong"), fact("wrong")}};
}

Schema allreduce_runs_schema() {
  const auto bus = [](const Record& r, const Records&) { return bus_rate(r) / 1e9; };
  return allreduce_case_schema() +
         Schema{{measure::text_column("implementation"), implementation()},
                {measure::integer_column("samples"), count("seconds")},
                {time_column("median"), median("seconds", 1e3)},
                {time_column("p10"), quantile("seconds", 0.1, 1e3)},
                {time_column("p90"), quantile("seconds", 0.9, 1e3)},
                {time_column("alone"), median("alone", 1e3)},
                {time_column("alone p90"), quantile("alone", 0.9, 1e3)},
                {measure::number_column("bus", "GB/s", 2), finite(bus)},
                {measure::integer_column("wrong"), fact("wrong")}};
}

std::vector<std::string> allreduce_findings(const Records& records) {
  std::vector<std::string> sentences;
  for (const auto& [backend, members] :
       records.grouped([](const Record& r) { return r.text("backend"); })) {
    for (const std::string& sentence : speed_beside_others(members, "flashstep", "seconds"))
      sentences.push_back(backend + ": " + sentence);
  }
  int64_t cases = 0, measured = 0, failed = 0;
  double wrong = 0;
  for (const Record& r : records) {
    cases += r.ours;
    measured += r.ours && r.has("seconds");
    failed += r.ours && r.outcome.failed();
    if (r.facts.contains("wrong")) wrong += r.number("wrong");
  }
  sentences.push_back(str("Verdict: ", measured, " of ", cases, " cases measured, ", failed,
                          " failed, ", wrong, " wrong elements."));
  return sentences;
}

// "nccl, 4 ranks", and the device where a backend has two.
std::string line_name(const Record& r) {
  const bool on_gpu = r.text("backend") == "gloo" && r.text("device") == "cuda";
  return str(r.text("backend"), on_gpu ? " (GPU)" : "", ", ", std::llround(r.number("ranks")),
             " ranks");
}

// Lines of ours, and dashed ones of the bare library, over the sizes.
measure::Plot lines_over_sizes(const Records& records, const ValueOf& value) {
  const auto name = [](const Record& r) { return line_name(r) + (r.ours ? "" : ", bare"); };
  const auto size = [](const Record& r) { return r.number("size"); };
  const std::vector<std::string> colors = records.distinct(line_name);
  std::vector<Record> sorted = records.all();
  std::stable_partition(sorted.begin(), sorted.end(), [](const Record& r) { return r.ours; });
  measure::Plot plot = lines(Records(std::move(sorted)), name, size, value,
                             [&](measure::Series& series, const Record& first) {
                               const auto at =
                                   std::find(colors.begin(), colors.end(), line_name(first));
                               series.color = static_cast<int>(at - colors.begin());
                               series.dashed = !first.ours;
                             });
  plot.x = {"MB", measure::Scale::kLog, {}};
  plot.y = {"GB/s", measure::Scale::kLog, {}};
  return plot;
}

std::vector<NamedPicture> allreduce_pictures(const Records& records, const Links& links,
                                             const std::string& footnote) {
  measure::Plot bus = lines_over_sizes(records, [](const Record& r) { return bus_rate(r) / 1e9; });
  measure::Plot time = lines_over_sizes(records, median_of("seconds", 1e3));
  if (bus.series.empty()) return {};
  bus.title = "All-reduce: bus bandwidth";
  time.title = "All-reduce: time of a call";
  time.y.label = "ms";
  bus.footnote = time.footnote = footnote;
  std::set<std::string> drawn;  // Gloo's transports have one link
  for (const auto& [transport, link] : links) {
    if (!drawn.insert(link.source).second) continue;
    bus.references.push_back({link.bytes_per_s / 1e9, str("link of ", transport.first), false});
  }
  return {{"bus", std::move(bus)}, {"time", std::move(time)}};
}

}  // namespace

Benchmark allreduce_benchmark(const BenchAllreduceOptions& options, const Links& links) {
  Benchmark benchmark;
  benchmark.command = "bench allreduce";
  benchmark.title = "All-reduce";
  for (const auto& [backend, device] : options.plan.transports) {
    if (device == "cuda" && !measure::list_gpus().empty()) benchmark.device = "cuda";
  }
  benchmark.refusals_are_mistakes = false;  // but cells: "needs 4 GPUs"
  benchmark.schema = [links](const Records&) { return allreduce_schema(links); };
  benchmark.has_row = [](const Record& r, const Records&) { return r.ours; };
  benchmark.runs_table = [](const Records& records) {
    return fill("All-reduce, by implementation", allreduce_runs_schema(),
                records.where([](const Record& r) { return r.has("seconds"); }));
  };
  benchmark.how_to_read = {note("allreduce")};
  for (const auto& [transport, link] : links) {
    benchmark.how_to_read.push_back(str("The link of ", transport.first, " on ", transport.second,
                                        ": ", fixed(link.bytes_per_s / 1e9, 1), " GB/s one way; ",
                                        link.source, "."));
  }
  benchmark.findings = allreduce_findings;
  if (options.quick) return benchmark;
  benchmark.pictures = [links](const Records& records, const std::string& footnote) {
    return allreduce_pictures(records, links, footnote);
  };
  return benchmark;
}

}  // namespace flashstep::tools
