#include "flashstep/bench/ddp_and_sharding.h"

#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/trace/trace.h"

namespace flashstep::tools {
namespace {

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

BenchReplicaOptions replica_preset(const std::string& command, const std::string& year) {
  require(year == "2024" || year == "2025" || year == "2026", "[bench ", command,
          "] expected preset 2024, 2025 or 2026, got \"", year, "\"");
  BenchReplicaOptions options;
  options.plan.command = command;
  ParallelAxes& axes = options.axes;
  if (year == "2024") {
    axes.sizes = handout_sizes(year);
    axes.common.batch_size = 16;
  } else {
    axes.precisions = {"fp32", "bf16"};
  }
  if (year == "2026") {
    axes.sizes = {"xl26"};
    axes.contexts = {512};
  }
  if (command == "sharding") {
    options.plan.implementations = {"none", "whole", "flat"};
    return options;
  }
  options.wrappers = {"none", "naive", "flat", "overlapped", "bucketed", "torch"};
  if (year == "2025") axes.contexts = {128, 512};
  if (year == "2024") options.bucket_megabytes = {5, 10, 50, 100, 500};
  if (year == "2025") options.bucket_megabytes = {1, 10, 100, 1000};
  // That handout asks for no buckets: ours as they come.
  if (year == "2026") options.bucket_megabytes = {25};
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

std::vector<Record> blanks_of(const ReplicaPlan& plan) {
  std::vector<Record> blanks;
  for (const std::string& implementation : plan.implementations) {
    Record& blank = blanks.emplace_back(blank_of(plan.c, implementation));
    if (plan.recorded) blank.what += ", recorded";
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
  check_transports(plan.implementations, options.axes.common.device);
  require(!plan.recorded || options.axes.common.device == "cuda",
          "[bench ddp] expected --device cuda with --graph, got ", options.axes.common.device);
  const Benchmark benchmark = ddp ? ddp_benchmark(options) : sharding_benchmark(options);
  return run_benchmark(benchmark, options.progress, [&](Run& run) {
    for (size_t i = 0; i < cases.size(); ++i) {
      plan.c = cases[i];
      run.begin(i, cases.size(), describe(plan.c));
      std::vector<Record> records = measure_plan(plan, plan.command, blanks_of(plan), run);
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
