// The results of `flashstep bench sharding` as a table, sentences and pictures.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/bench/ddp_and_sharding.h"
#include "flashstep/bench/schema.h"
#include "flashstep/trace/trace.h"

namespace flashstep::tools {
namespace {

double idle_seconds(const Record& r) {
  return is_traced(r) ? std::max(r.number("update seconds") - r.number("busy"), 0.0) : NAN;
}

Schema sharding_schema() {
  // What neither parameters, gradients nor state is, at the peak of the update.
  const ValueOf rest = [](const Record& r) {
    const double peak = std::max(r.number("before update"), r.number("after update"));
    return (peak - r.number("parameters") - r.number("gradients") - r.number("state")) / kGiB;
  };
  const ValueOf idle = [](const Record& r) { return 1e3 * idle_seconds(r); };
  const auto bytes = [](const char* column, const CellOf& cell) -> SchemaColumn {
    return {measure::number_column(column, "GiB", 3), cell};
  };
  const auto ms = [](const char* column, const CellOf& cell) -> SchemaColumn {
    return {measure::number_column(column, "ms", 2), cell};
  };
  return parallel_schema() +
         Schema{{measure::text_column("optimizer"), implementation()},
                bytes("after init", or_word(fact("after init", 1 / kGiB))),
                bytes("before update", fact("before update", 1 / kGiB)),
                bytes("after update", fact("after update", 1 / kGiB)),
                bytes("parameters", fact("parameters", 1 / kGiB)),
                bytes("gradients", fact("gradients", 1 / kGiB)),
                bytes("in theory", if_has("total", fact("theory gradients", 1 / kGiB))),
                bytes("state", fact("state", 1 / kGiB)),
                bytes("in theory", if_has("total", fact("theory state", 1 / kGiB))),
                bytes("rest", finite(rest)),
                ms("update", median("optimizer", 1e3)),
                ms("step", median("total", 1e3)),
                ms("computing", fact("computing", 1e3)),
                ms("communication", fact("communication", 1e3)),
                ms("exposed", fact("exposed", 1e3)),
                ms("idle", finite(idle)),
                ms("host", fact("host", 1e3)),
                {measure::integer_column("launches"), fact("launches")},
                // Behind the numbers, as in bench ddp.
                {measure::text_column("gradients by"), words(text_of("gradients by"))},
                {measure::text_column("updates by"), words(text_of("updates by"))}};
}

// "11.20 ms" of a fact in seconds.
std::string milliseconds(const Record& r, const char* fact) {
  return fixed(1e3 * r.number(fact), 2) + " ms";
}

// "; 62.1 % of 11.20 ms of sending exposed"
std::string sending(const Record& r) {
  if (!(r.number("communication") > 0)) return "";
  return str("; ", fixed(100 * r.number("exposed") / r.number("communication"), 1), " % of ",
             milliseconds(r, "communication"), " of sending exposed");
}

// What a sharded update takes its time for, beside the one without shards.
std::string reason(const Record& r, const Record& whole) {
  const double slower = r.number("computing") * r.number("ranks") / whole.number("computing");
  // On a CPU the host is what computes.
  const std::string launches =
      r.text("device") == "cuda" ? "; the host launches for " + milliseconds(r, "host") : "";
  return str("an update of ", milliseconds(r, "update seconds"), " computes for ",
             milliseconds(r, "computing"), ", ", fixed(slower, 2), " x a rank's share of ",
             milliseconds(whole, "computing"), " without shards", sending(r), "; idle ",
             fixed(1e3 * idle_seconds(r), 2), " ms", launches, ".");
}

std::vector<std::string> sharding_findings(const Records& records) {
  std::vector<std::string> buckets, reasons, shares;
  for (const Record& r : records) {
    const std::string who = str(r.what, ", ", r.implementation, ": ");
    const Record* whole = records.find(r, "none");
    if (!r.text("buckets").empty()) buckets.push_back(who + "gradients " + r.text("buckets") + ".");
    if (whole == nullptr || r.implementation.starts_with("none")) continue;
    if (is_traced(r) && is_traced(*whole)) reasons.push_back(who + reason(r, *whole));
    if (!r.has("total") || !whole->has("total")) continue;
    shares.push_back(str(who, fixed(100 * r.number("state") / whole->number("state"), 2),
                         " % of the state a rank; ",
                         fixed(r.median("total") / whole->median("total"), 3),
                         " x the time of the step without shards."));
  }
  for (const auto& more : {reasons, shares})
    buckets.insert(buckets.end(), more.begin(), more.end());
  return buckets;
}

std::vector<NamedPicture> sharding_pictures(const Records& records) {
  std::vector<NamedPicture> pictures;
  for (const auto& [stem, members] : records.grouped(text_of("stem"))) {
    measure::LaneChart chart;
    chart.title = "What runs when in the update of a training step";
    chart.subtitle =
        members.all().front().what + "; rank 0 under the profiler, which slows the host down";
    for (const Record& r : members) {
      if (is_traced(r))
        chart.groups.push_back(
            lanes_of(trace_of(r),
                     str(r.implementation, ": ", milliseconds(r, "update seconds"), sending(r))));
    }
    if (!chart.groups.empty()) pictures.push_back({stem + "_update", std::move(chart)});
  }
  return pictures;
}

}  // namespace

Benchmark sharding_benchmark(const BenchReplicaOptions& options) {
  Benchmark benchmark = {.command = "bench sharding",
                         .title = str("The optimizer's state divided between ranks (wrapper ",
                                      options.plan.wrapper, ")"),
                         .device = options.axes.common.device,
                         .schema = [](const Records&) { return sharding_schema(); },
                         .how_to_read = {note("sharding")},
                         .findings = sharding_findings,
                         .pictures = sharding_pictures};
  if (options.plan.traced) benchmark.how_to_read.push_back(note("sharding update"));
  if (benchmark.device == "cpu") benchmark.how_to_read.push_back(note("parallel memory on a CPU"));
  return benchmark;
}

}  // namespace flashstep::tools
