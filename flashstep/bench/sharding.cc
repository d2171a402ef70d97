// The results of `flashstep bench sharding` as a table, sentences and pictures.
#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/bench/ddp_and_sharding.h"
#include "flashstep/bench/schema.h"
#include "flashstep/trace/trace.h"

namespace flashstep::tools {
namespace {

using measure::Cell;

double idle_seconds(const Record& r) {
  return std::max(r.number("update seconds") - r.number("busy"), 0.0);
}

// What neither parameters, gradients nor state is, at the peak of the update.
double rest_bytes(const Record& r, const Records&) {
  return std::max(r.number("before update"), r.number("after update")) - r.number("parameters") -
         r.number("gradients") - r.number("state");
}

CellOf if_measured(const CellOf& cell) {
  return [cell](const Record& r, const Records& all) {
    return r.has("total") ? cell(r, all) : Cell();
  };
}

Schema sharding_schema() {
  const auto scaled_rest = [](const Record& r, const Records& all) {
    return rest_bytes(r, all) / kGiB;
  };
  const auto idle = [](const Record& r, const Records&) {
    return is_traced(r) ? 1e3 * idle_seconds(r) : NAN;
  };
  const auto words = [](const char* name) {
    return [name](const Record& r, const Records&) {
      return r.text(name).empty() ? Cell() : Cell(r.text(name));
    };
  };
  Schema schema = parallel_schema() + Schema{{measure::text_column("optimizer"), implementation()}};
  const auto bytes = [&](const char* column, const CellOf& cell) {
    schema.push_back({measure::number_column(column, "GiB", 3), cell});
  };
  const auto ms = [&](const char* column, const CellOf& cell) {
    schema.push_back({measure::number_column(column, "ms", 2), cell});
  };
  bytes("after init", or_word(fact("after init", 1 / kGiB)));
  for (const char* name : {"before update", "after update", "parameters", "gradients"})
    bytes(name, fact(name, 1 / kGiB));
  bytes("in theory", if_measured(fact("theory gradients", 1 / kGiB)));
  bytes("state", fact("state", 1 / kGiB));
  bytes("in theory", if_measured(fact("theory state", 1 / kGiB)));
  bytes("rest", finite(scaled_rest));
  ms("update", median("optimizer", 1e3));
  ms("step", median("total", 1e3));
  for (const char* name : {"computing", "communication", "exposed"}) ms(name, fact(name, 1e3));
  ms("idle", finite(idle));
  ms("host", fact("host", 1e3));
  schema.push_back({measure::integer_column("launches"), fact("launches")});
  // Behind the numbers: what stands before them is what rows of two reports are known by.
  for (const char* name : {"gradients by", "updates by"})
    schema.push_back({measure::text_column(name), words(name)});
  return schema;
}

std::string two_digit_milliseconds(double seconds) { return fixed(1e3 * seconds, 2) + " ms"; }

// "; 62.1 % of 11.20 ms of sending exposed"
std::string sending_in_words(const Record& r) {
  if (!(r.number("communication") > 0)) return "";
  return str("; ", fixed(100 * r.number("exposed") / r.number("communication"), 1), " % of ",
             two_digit_milliseconds(r.number("communication")), " of sending exposed");
}

// What a sharded update takes its time for, beside the one without shards.
std::string reason(const Record& r, const Record& whole) {
  const double alone = whole.number("computing");
  const double slower = r.number("computing") * r.number("ranks") / alone;
  std::string sentence =
      str(r.what, ", ", r.implementation, ": an update of ",
          two_digit_milliseconds(r.number("update seconds")), " computes for ",
          two_digit_milliseconds(r.number("computing")), ", ", fixed(slower, 2),
          " x a rank's share of ", two_digit_milliseconds(alone), " without shards",
          sending_in_words(r), "; idle ", two_digit_milliseconds(idle_seconds(r)));
  // On a CPU the host is what computes.
  if (r.text("device") == "cuda")
    sentence += str("; the host launches for ", two_digit_milliseconds(r.number("host")));
  return sentence + ".";
}

std::vector<std::string> sharding_findings(const Records& records) {
  std::vector<std::string> buckets, reasons, shares;
  for (const Record& r : records) {
    const Record* whole = records.find(r, "none");
    if (!r.text("buckets").empty())
      buckets.push_back(
          str(r.what, ", ", r.implementation, ": gradients ", r.text("buckets"), "."));
    if (whole == nullptr || r.implementation.starts_with("none")) continue;
    if (is_traced(r) && is_traced(*whole)) reasons.push_back(reason(r, *whole));
    if (!r.has("total") || !whole->has("total")) continue;
    shares.push_back(str(r.what, ", ", r.implementation, ": ",
                         fixed(100 * r.number("state") / whole->number("state"), 2),
                         " % of the state a rank; ",
                         fixed(r.median("total") / whole->median("total"), 3),
                         " x the time of the step without shards."));
  }
  for (const auto& more : {reasons, shares})
    buckets.insert(buckets.end(), more.begin(), more.end());
  return buckets;
}

std::vector<NamedPicture> sharding_pictures(const Records& records, const std::string& footnote) {
  std::vector<NamedPicture> pictures;
  for (const auto& [stem, members] :
       records.grouped([](const Record& r) { return r.text("stem"); })) {
    measure::LaneChart chart;
    chart.title = "What runs when in the update of a training step";
    chart.subtitle =
        members.all().front().what + "; rank 0 under the profiler, which slows the host down";
    chart.footnote = footnote;
    for (const Record& r : members) {
      if (!is_traced(r)) continue;
      chart.groups.push_back(
          lanes_of(trace_of(r),
                   str(r.implementation, ": ", two_digit_milliseconds(r.number("update seconds")),
                       sending_in_words(r))));
    }
    if (!chart.groups.empty()) pictures.push_back({stem + "_update", std::move(chart)});
  }
  return pictures;
}

}  // namespace

Benchmark sharding_benchmark(const BenchReplicaOptions& options) {
  Benchmark benchmark;
  benchmark.command = "bench sharding";
  benchmark.title =
      str("The optimizer's state divided between ranks (wrapper ", options.plan.wrapper, ")");
  benchmark.device = options.axes.device;
  benchmark.schema = [](const Records&) { return sharding_schema(); };
  benchmark.how_to_read = {note("sharding")};
  if (options.plan.traced) benchmark.how_to_read.push_back(note("sharding update"));
  benchmark.findings = sharding_findings;
  benchmark.pictures = sharding_pictures;
  return benchmark;
}

}  // namespace flashstep::tools
