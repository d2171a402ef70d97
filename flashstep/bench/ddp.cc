// The results of `flashstep bench ddp` as a table, sentences and pictures.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/bench/ddp_and_sharding.h"
#include "flashstep/bench/schema.h"
#include "flashstep/error.h"
#include "flashstep/model/cost.h"
#include "flashstep/parallel/cost.h"
#include "flashstep/trace/trace.h"

namespace flashstep::tools {
namespace {

constexpr double kMomentBytes = 8;    // AdamW: two float32 a parameter
constexpr double kGradientBytes = 4;  // float32, in bf16 autocast too

double added_percent(const Record& r, const Records& all) {
  return 100 * (1 / times_as_fast(r, all, "none", "total") - 1);
}

double added_memory_percent(const Record& r, const Records& all) {
  const Record* none = all.find(r, "none");
  return none == nullptr
             ? NAN
             : 100 * (r.quantile("peak_bytes", 1) / none->quantile("peak_bytes", 1) - 1);
}

Schema ddp_schema() {
  using measure::number_column;
  const NameOf name = [](const Record& r) { return shown_name(r); };
  const auto ms = [](const char* column, const CellOf& cell) -> SchemaColumn {
    return {number_column(column, "ms", 2), cell};
  };
  return parallel_schema() +
         Schema{{measure::text_column("wrapper"), words(name)},
                ms("forward", median("forward", 1e3)),
                ms("backward", median("backward", 1e3)),
                ms("waited", median("waited", 1e3)),
                ms("optimizer", median("optimizer", 1e3)),
                ms("step", or_word(median("total", 1e3))),
                ms("p10", quantile("total", 0.1, 1e3)),
                ms("p90", quantile("total", 0.9, 1e3)),
                ms("slowest", median("slowest", 1e3)),
                ms("first", median("first", 1e3)),
                ms("lead", median("lead", 1e3)),
                {number_column("added", "%", 1), finite(added_percent)},
                ms("communication", fact("communication", 1e3)),
                ms("exposed", fact("exposed", 1e3)),
                {number_column("hidden", "%", 1), fact("hidden", 100)},
                {number_column("peak memory", "GiB", 3), quantile("peak_bytes", 1, 1 / kGiB)},
                {number_column("added memory", "%", 2), finite(added_memory_percent)},
                {error_column("weights"), fact("weight_error")},
                // Behind the numbers: what stands before them is what rows of two reports are known
                // by.
                {measure::text_column("by"), words(text_of("gradients by"))}};
}

// The most that weights may differ in, as a share of the largest movement. Two ranks' sums have one
// order and halving is exact: only what kernels round differently from call to call is left. From
// three on sums round in another order; in bf16 a weight on the edge of two values then falls to
// the other side in the second step (2^-9).
double weight_tolerance(const ParallelCase& c) { return c.precision == "fp32" ? 1e-3 : 2e-2; }

// The fastest of those whose name begins so; null without one.
const Record* fastest(const Record& of_case, const Records& all, const std::string& prefix) {
  return all.fastest(of_case, "total",
                     [&](const Record& r) { return r.implementation.starts_with(prefix); });
}

// "bucketed 25 MB nccl"; a size that was chosen comes with its unit.
std::string with_unit(const Record& r) {
  const std::string name = shown_name(r);
  if (name != r.implementation) return name;
  const size_t size = name.find(' ') + 1;  // of wrappers that have one
  const size_t end = std::min(name.find(' ', size), name.size());
  return name.substr(0, end) + " MB" + name.substr(end);
}

void add_sentences(const Record& of_case, const Records& all, std::vector<std::string>& sentences) {
  const Record *ours = fastest(of_case, all, "bucketed"), *torch = fastest(of_case, all, "torch");
  if (ours == nullptr) return;
  const double added = added_percent(*ours, all), memory = added_memory_percent(*ours, all);
  if (std::isnan(added)) return;  // "none" was not measured
  std::string sentence = str(of_case.what, ": ", with_unit(*ours), " adds ", fixed(added, 1),
                             " % to the step and ", fixed(memory, 2), " % to peak memory");
  if (torch != nullptr) {
    sentence +=
        str(", torch ", fixed(added_percent(*torch, all), 1),
            " %: ", fixed(torch->median("total") / ours->median("total"), 3), " x torch's speed");
  }
  sentences.push_back(sentence + ".");
  if (of_case.text("device") != "cuda" || !ours->facts.contains("hidden")) return;
  sentence = str(of_case.what, ": ", fixed(100 * ours->number("hidden"), 1),
                 " % of the communication hidden");
  if (ours->has("waited")) {
    const double waited = ours->median("waited");
    sentence += str("; without the profiler, which slows the host down, a step waits ",
                    fixed(1e3 * waited, 2), " ms for gradients when backward is done: ",
                    fixed(100 * (1 - waited / ours->number("communication")), 1), " % hidden");
  }
  sentences.push_back(sentence + ".");
}

std::vector<std::string> ddp_findings(const Records& records) {
  std::vector<std::string> sentences;
  for (const Record* of_case : records.cases()) add_sentences(*of_case, records, sentences);
  int compared = 0, wrong = 0;
  for (const Record& r : records) {
    compared += r.facts.contains("weight_error");
    wrong += r.facts.contains("wrong weights");
  }
  sentences.push_back(compared == 0 ? "Verdict: no weights were compared."
                      : wrong > 0
                          ? str("Verdict: WRONG weights in ", wrong, " of ", compared, " runs.")
                          : str("Verdict: the weights of all ", compared,
                                " compared runs are a single process's."));
  return sentences;
}

// Every step as a point: the host holds up those that begin with hardly any lead.
measure::Plot leads(const Records& records) {
  measure::Plot plot;
  plot.title = "Steps, by how far the host was ahead of them";
  plot.x.label = "time between the launch of a step's first kernel and its start, ms";
  plot.y.label = "step, ms";
  for (const Record& r : records) {
    const auto &lead = r.series("lead"), &total = r.series("total");
    if (lead.size() != total.size() || lead.empty()) continue;
    measure::Series& series = plot.series.emplace_back();
    series.name = shown_name(r);
    series.kind = measure::Series::Kind::kPoints;
    for (size_t i = 0; i < lead.size(); ++i) {
      series.x.push_back(1e3 * lead[i]);
      series.y.push_back(1e3 * total[i]);
    }
  }
  return plot;
}

measure::LaneChart lanes(const Records& records) {
  const Record& first = records.all().front();
  const Record *bucketed = fastest(first, records, "bucketed"),
               *torch = fastest(first, records, "torch");
  measure::LaneChart chart;
  chart.title = "What runs when in a training step";
  for (const Record& r : records) {
    const bool drawn = r.implementation == "naive" || r.implementation == "overlapped" ||
                       &r == bucketed || &r == torch;
    if (!drawn || !is_traced(r)) continue;
    chart.groups.push_back(
        lanes_of(trace_of(r), str(shown_name(r), ": ", fixed(100 * r.number("hidden"), 1),
                                  " % of the communication hidden")));
  }
  return chart;
}

measure::Plot parts(const Records& records) {
  measure::Plot plot = part_bars(records, [](const Record& r) { return shown_name(r); },
                                 {{"forward", median_of("forward", 1e3)},
                                  {"backward", median_of("backward", 1e3)},
                                  {"optimizer", median_of("optimizer", 1e3)},
                                  {"step", median_of("total", 1e3)}});
  plot.title = "A training step in its parts";
  plot.y.label = "ms";
  return plot;
}

std::vector<NamedPicture> ddp_pictures(const Records& records) {
  std::vector<NamedPicture> pictures;
  for (const auto& [stem, members] : records.grouped(text_of("stem"))) {
    const auto add = [&](const char* name, auto picture, const char* subtitle) {
      picture.subtitle = members.all().front().what + subtitle;
      pictures.push_back({stem + name, std::move(picture)});
    };
    add("_parts", parts(members), "; backward ends when every gradient is the mean");
    measure::LaneChart chart = lanes(members);
    if (!chart.groups.empty())
      add("_lanes", std::move(chart), "; rank 0 under the profiler, which slows the host down");
    measure::Plot points = leads(members);
    if (!points.series.empty() && !stem.ends_with("_recorded"))
      add("_leads", std::move(points), "; rank 0");
  }
  return pictures;
}

}  // namespace

void complete(const ReplicaPlan& plan, std::vector<Record>& records) {
  for (Record& r : records) {
    const double most = weight_tolerance(plan.c), error = r.number("weight_error");
    if (r.facts.contains("weight_error") && !(error <= most)) {
      r.facts["wrong weights"] = 1;
      if (!r.implementation.starts_with("torch"))
        r.fault = str("expected weights within ", most, " of a single process's, got ", error);
    }
    if (plan.command == "ddp") continue;
    const bool sharded = !r.implementation.starts_with("none");
    const double ranks = sharded ? static_cast<double>(plan.c.ranks) : 1;
    const Memory theory = data_parallel_memory(
        parameter_count(plan.c.model),
        r.implementation.starts_with("flat") ? kGradientBytes / ranks : kGradientBytes,
        /*bucket_bytes=*/0, kMomentBytes, static_cast<int>(ranks));
    r.facts["theory gradients"] = theory.gradients;
    r.facts["theory state"] = theory.optimizer_state;
  }
}

Benchmark ddp_benchmark(const BenchReplicaOptions& options) {
  const ReplicaPlan& plan = options.plan;
  Benchmark benchmark = {
      .command = "bench ddp",
      .title = str("Data parallelism: a training step", plan.recorded ? ", recorded" : ""),
      .device = options.axes.common.device,
      .schema = [](const Records&) { return ddp_schema(); },
      .how_to_read = {note("ddp")},
      .how = str("Medians of ", plan.turns * plan.steps, " steps in ", plan.turns, " turns"),
      .findings = ddp_findings,
      .pictures = ddp_pictures};
  if (plan.recorded) benchmark.how_to_read.push_back(note("ddp recorded"));
  if (benchmark.device == "cpu") benchmark.how_to_read.push_back(note("parallel memory on a CPU"));
  return benchmark;
}

}  // namespace flashstep::tools
