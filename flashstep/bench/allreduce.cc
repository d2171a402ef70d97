// `flashstep bench allreduce` in the process that was called: it starts ranks, and shows what they
// measured as tables, sentences and pictures.
#include "flashstep/bench/allreduce.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "flashstep/base/text.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/schema.h"
#include "flashstep/measure/gpu.h"

namespace flashstep::tools {
namespace {

using measure::Cell;
using measure::number_column;

// In GB/s, as nccl-tests defines them (doc/PERFORMANCE.md there): the bytes of one rank's buffer
// over the time, and that times 2 (n - 1) / n, what each rank has to send, and to receive, at
// least.
double algorithm_rate(const Record& r) { return r.number("size") / 1e3 / r.median("seconds"); }
double bus_rate(const Record& r) {
  const double n = r.number("ranks");
  return algorithm_rate(r) * 2 * (n - 1) / n;
}

measure::Column time_column(const std::string& name) { return number_column(name, "ms", 4); }

Schema allreduce_case_schema() {
  return {text_key("backend"),
          text_key("device"),
          text_key("dtype"),
          integer_key("ranks"),
          {significant("size", "MB"), fact("size")}};
}

// What a machine lacks is said in the cell.
Cell time_or_reason(const Record& r, const Records&) {
  if (r.outcome.status == Status::kRefused) return r.outcome.why;
  if (!r.outcome.measured()) return r.outcome.word();
  return r.has("seconds") ? Cell(1e3 * r.median("seconds")) : Cell("failed");
}

Schema allreduce_schema(const Links& links) {
  const auto share = [links](const Record& r) {
    const auto link = links.find({r.text("backend"), r.text("device")});
    return link == links.end() ? NAN : 100e9 * bus_rate(r) / link->second.bytes_per_s;
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
                {number_column("algorithm", "GB/s", 2), finite(algorithm_rate)},
                {number_column("bus", "GB/s", 2), finite(bus_rate)},
                {number_column("of link", "%", 1), finite(share)},
                {time_column("bare"), of("bare", median("seconds", 1e3))},
                {time_column("bare alone"), of("bare", median("alone", 1e3))},
                {number_column("x bare", "", 3), finite(ratio)},
                {number_column("above bare", "us", 1), finite(above)},
                {measure::integer_column("wrong"), fact("wrong")}};
}

Schema allreduce_runs_schema() {
  return allreduce_case_schema() +
         Schema{{measure::text_column("implementation"), implementation()},
                {measure::integer_column("samples"), count("seconds")},
                {time_column("median"), median("seconds", 1e3)},
                {time_column("p10"), quantile("seconds", 0.1, 1e3)},
                {time_column("p90"), quantile("seconds", 0.9, 1e3)},
                {time_column("alone"), median("alone", 1e3)},
                {time_column("alone p90"), quantile("alone", 0.9, 1e3)},
                {number_column("bus", "GB/s", 2), finite(bus_rate)},
                {measure::integer_column("wrong"), fact("wrong")}};
}

std::vector<std::string> allreduce_findings(const Records& records) {
  std::vector<std::string> sentences;
  for (const auto& [backend, members] : records.grouped(text_of("backend"))) {
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
  plot.x = {"MB", measure::Scale::kLog};
  plot.y = {"GB/s", measure::Scale::kLog};
  return plot;
}

std::vector<NamedPicture> allreduce_pictures(const Records& records, const Links& links) {
  measure::Plot bus = lines_over_sizes(records, bus_rate);
  measure::Plot time = lines_over_sizes(records, median_of("seconds", 1e3));
  if (bus.series.empty()) return {};
  bus.title = "All-reduce: bus bandwidth";
  time.title = "All-reduce: time of a call";
  time.y.label = "ms";
  std::set<std::string> drawn;  // Gloo's transports have one link
  for (const auto& [transport, link] : links) {
    if (!drawn.insert(link.source).second) continue;
    bus.references.push_back({link.bytes_per_s / 1e9, str("link of ", transport.first), false});
  }
  return {{"bus", std::move(bus)}, {"time", std::move(time)}};
}

// Why a job cannot be started at all; empty if it can.
std::string obstacle(const AllreduceCase& c, int64_t gpus) {
  if (c.device == "cuda" && gpus == 0) return "needs a GPU";
  if (c.backend == "nccl" && c.ranks > gpus) return str("needs ", c.ranks, " GPUs");
  return "";
}

std::vector<Record> allreduce_blanks(const std::vector<AllreduceCase>& cases) {
  std::vector<Record> blanks;
  for (const AllreduceCase& c : cases) {
    for (const char* name : {"flashstep", "bare"}) {
      blanks.push_back({.key = key_of(c),
                        .what = describe(c),
                        .implementation = name,
                        .ours = blanks.size() % 2 == 0});
    }
  }
  return blanks;
}

// Starts one job's ranks. A bare library that cannot be called has no record.
std::vector<Record> run_allreduce_job(const BenchAllreduceOptions& options,
                                      const std::vector<AllreduceCase>& cases, const Run& run) {
  RankJob job;
  job.ranks = static_cast<int>(cases.front().ranks);
  job.program = job.launcher = options.program;
  job.arguments = {"bench", "allreduce"};
  job.progress = [&](const std::string& line) { run.tell(line); };
  const auto task_of = [&](const std::vector<std::string>& units) {
    AllreduceTask task = options.task;
    for (const AllreduceCase& c : cases)
      if (contains(units, describe(c))) task.cases.push_back(c);
    return write_task(task);
  };
  std::vector<Record> records = measure_on_ranks(job, task_of, allreduce_blanks(cases),
                                                 [](const Record& r) { return r.what; });
  std::erase_if(records, [](const Record& r) { return !r.ours && !r.has("seconds"); });
  for (Record& record : records) {
    if (record.ours && record.number("wrong") > 0)
      record.fault = str("expected exact sums, got ", record.number("wrong"), " wrong elements");
  }
  return records;
}

}  // namespace

Benchmark allreduce_benchmark(const BenchAllreduceOptions& options, const Links& links) {
  Benchmark benchmark = {.command = "bench allreduce",
                         .title = "All-reduce",
                         .schema = [links](const Records&) { return allreduce_schema(links); },
                         .has_row = [](const Record& r, const Records&) { return r.ours; },
                         .runs_table =
                             [](const Records& records) {
                               return fill(
                                   "All-reduce, by implementation", allreduce_runs_schema(),
                                   records.where([](const Record& r) { return r.has("seconds"); }));
                             },
                         .how_to_read = {note("allreduce")},
                         .findings = allreduce_findings};
  for (const auto& [backend, device] : options.plan.transports) {
    if (device == "cuda" && !measure::list_gpus().empty()) benchmark.device = "cuda";
  }
  for (const auto& [transport, link] : links) {
    benchmark.how_to_read.push_back(str("The link of ", transport.first, " on ", transport.second,
                                        ": ", fixed(link.bytes_per_s / 1e9, 1), " GB/s one way; ",
                                        link.source, "."));
  }
  if (options.task.quick) return benchmark;
  benchmark.pictures = [links](const Records& records) {
    return allreduce_pictures(records, links);
  };
  return benchmark;
}

BenchReport bench_allreduce(const BenchAllreduceOptions& options) {
  const auto jobs = jobs_of(options.plan);
  const std::vector<measure::Gpu> gpus = measure::list_gpus();
  const Links links = links_of(options.plan.transports, gpus.empty() ? "" : gpus.front().name);
  const Benchmark benchmark = allreduce_benchmark(options, links);
  return run_benchmark(benchmark, options.progress, [&](Run& run) {
    for (size_t i = 0; i < jobs.size(); ++i) {
      const AllreduceCase& c = jobs[i].front();
      run.begin(i, jobs.size(), str(c.backend, " ", c.device, " ", c.ranks, " ranks"));
      const std::string reason = obstacle(c, static_cast<int64_t>(gpus.size()));
      if (reason.empty()) {
        run.add(run_allreduce_job(options, jobs[i], run));
        continue;
      }
      std::vector<Record> records = allreduce_blanks(jobs[i]);
      std::erase_if(records, [](const Record& r) { return !r.ours; });
      for (Record& record : records) record.outcome = {Status::kRefused, reason};
      run.add(std::move(records));
    }
  });
}

}  // namespace flashstep::tools
