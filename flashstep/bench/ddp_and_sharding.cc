#include "flashstep/bench/ddp_and_sharding.h"

#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/error.h"
#include "flashstep/trace/trace.h"

namespace flashstep::tools {
namespace {

// Contexts, precisions and models that both benchmarks have in a year.
ParallelAxes axes_of(const std::string& command, const std::string& year) {
  ParallelAxes axes;
  if (year == "2024") {
    axes.models = {"small", "medium", "large", "xl", "2.7B"};
    axes.batch_size = 16;
    return axes;
  }
  require(year == "2025" || year == "2026", "[bench ", command,
          "] expected preset 2024, 2025 or 2026, got \"", year, "\"");
  axes.precisions = {"fp32", "bf16"};
  if (year == "2025") {
    if (command == "ddp") axes.contexts = {128, 512};
    return axes;
  }
  axes.models = {"xl26"};
  axes.contexts = {512};
  return axes;
}

std::vector<double> ends_of(const std::vector<measure::Span>& spans) {
  std::vector<double> ends;
  for (const measure::Span& span : spans) {
    ends.push_back(std::round(span.begin * 1e7) * 1e-7);  // Kineto's own grain is finer
    ends.push_back(std::round(span.end * 1e7) * 1e-7);
  }
  return ends;
}

std::vector<measure::Span> spans_of(const std::vector<double>& ends) {
  std::vector<measure::Span> spans;
  for (size_t i = 0; i + 1 < ends.size(); i += 2) spans.push_back({ends[i], ends[i + 1]});
  return spans;
}

}  // namespace

BenchReplicaOptions ddp_preset(const std::string& year) {
  BenchReplicaOptions options;
  options.axes = axes_of("ddp", year);
  options.wrappers = {"none", "naive", "flat", "overlapped", "bucketed", "torch"};
  options.bucket_megabytes = {1, 10, 100, 1000};
  if (year == "2024") options.bucket_megabytes = {5, 10, 50, 100, 500};
  // That handout asks for no buckets: ours as they come.
  if (year == "2026") options.bucket_megabytes = {25};
  return options;
}

BenchReplicaOptions sharding_preset(const std::string& year) {
  BenchReplicaOptions options;
  options.axes = axes_of("sharding", year);
  options.plan.command = "sharding";
  options.plan.implementations = {"none", "whole", "flat"};
  return options;
}

std::vector<std::string> sharding_names() {
  return {"none", "whole", "flat", "none nccl", "whole nccl", "flat nccl", "flat scattered"};
}

ParallelConfig sharding_by_name(const std::string& name) {
  const std::vector<std::string> names = sharding_names();
  require(contains(names, name), "[bench sharding] expected one of ", join(names), ", got \"", name,
          "\"");
  ParallelConfig division;
  division.shard_optimizer = name.substr(0, name.find(' '));
  if (name.ends_with(" nccl")) division.peer_copies = "none";
  if (name.ends_with(" scattered")) division.flat_buckets = "yes";
  return division;
}

std::string shown_name(const Record& record) {
  const double megabytes = record.number("bucket_megabytes");
  return shown_name(record.implementation, megabytes > 0 ? megabytes : 0);
}

Fields key_of(const ParallelCase& c) {
  return {{"model", c.model},
          {"ranks", c.ranks},
          {"batch", c.batch_size},
          {"context", c.context_length},
          {"precision", c.precision}};
}

Schema parallel_schema() {
  return {text_key("model"), integer_key("ranks"), integer_key("batch"), integer_key("context"),
          text_key("precision")};
}

CellOf most(const std::string& series, double factor) { return quantile(series, 1, factor); }

std::vector<Record> blanks_of(const ReplicaPlan& plan) {
  std::vector<Record> blanks;
  for (const std::string& implementation : plan.implementations) {
    Record& blank = blanks.emplace_back();
    blank.key = key_of(plan.c);
    blank.what = describe(plan.c) + (plan.recorded ? ", recorded" : "");
    blank.implementation = implementation;
    blank.facts["stem"] = file_stem(plan.c) + (plan.recorded ? "_recorded" : "");
    blank.facts["device"] = plan.c.device;
  }
  return blanks;
}

BenchReport bench_replica(const BenchReplicaOptions& options) {
  const bool ddp = options.plan.command == "ddp";
  const std::vector<ParallelCase> cases = cases_of(options.axes);
  ReplicaPlan plan = options.plan;
  if (ddp) plan.implementations = division_names(options.wrappers, options.bucket_megabytes);
  check_transports(plan.implementations, options.axes.device);
  require(!plan.recorded || options.axes.device == "cuda",
          "[bench ddp] expected --device cuda with --graph, got ", options.axes.device);
  const Benchmark benchmark = ddp ? ddp_benchmark(options) : sharding_benchmark(options);
  return run_benchmark(benchmark, options.progress, [&](Run& run) {
    for (size_t i = 0; i < cases.size(); ++i) {
      plan.c = cases[i];
      run.begin(i, cases.size(), describe(plan.c));
      std::vector<Record> records =
          measure_plan(plan, plan.command, blanks_of(plan),
                       [&](const std::string& line) { run.tell(describe(plan.c) + ": " + line); });
      complete(plan, records);
      for (const Record& record : records) {
        const std::string failure = record.text("trace trouble");
        if (!failure.empty())
          run.note(str(record.what, ", ", shown_name(record), ": ", failure, "."));
      }
      run.add(std::move(records));
    }
  });
}

void put_trace(const Trace& trace, Record& record) {
  if (!trace.failure.empty()) {
    record.facts["trace trouble"] = trace.failure;
    return;
  }
  record.samples["compute spans"] = ends_of(trace.compute);
  record.samples["copies spans"] = ends_of(trace.copies);
  record.samples["communication spans"] = ends_of(trace.communication);
  record.facts["computing"] = trace.compute_seconds();
  record.facts["communication"] = trace.communication_seconds();
  record.facts["exposed"] = trace.exposed_seconds();
  record.facts["busy"] = trace.busy_seconds();
  record.facts["launches"] = trace.communication.size();
  if (trace.communication_seconds() > 0) record.facts["hidden"] = trace.hidden_share();
}

Trace trace_of(const Record& record) {
  return {spans_of(record.series("compute spans")), spans_of(record.series("copies spans")),
          spans_of(record.series("communication spans")), record.text("trace trouble")};
}

bool is_traced(const Record& record) { return record.facts.contains("communication"); }

}  // namespace flashstep::tools
