// What `flashstep bench ddp` and `bench sharding` measure, in the process that was called and in
// each rank.
#include "flashstep/bench/ddp_and_sharding.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "flashstep/base/text.h"
#include "flashstep/bench/model_run.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/replica.h"
#include "flashstep/error.h"
#include "flashstep/optim.h"
#include "flashstep/sharded_optimizer.h"
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

double bytes_of(const std::vector<at::Tensor>& tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) bytes += static_cast<double>(tensor.nbytes());
  }
  return bytes;
}

// Of the moments that this rank keeps.
double state_bytes(const torch::optim::Optimizer& optimizer) {
  const auto* sharded = dynamic_cast<const ShardedOptimizerBase*>(&optimizer);
  const torch::optim::Optimizer& inner = sharded == nullptr ? optimizer : sharded->inner();
  double bytes = 0;
  for (const auto& [parameter, state] : inner.state()) {
    const auto& adamw = static_cast<const AdamWState&>(*state);
    bytes += bytes_of({adamw.step, adamw.exp_avg, adamw.exp_avg_sq, adamw.max_exp_avg_sq});
  }
  return bytes;
}

// Whole ones, or what this rank keeps of them.
double gradient_bytes(Replica& replica) {
  auto* sharded = dynamic_cast<ShardedOptimizerBase*>(&replica.optimizer());
  if (sharded != nullptr && sharded->gradients_are_divided()) return bytes_of(sharded->gradients());
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : replica.model().parameters())
    gradients.push_back(parameter.grad());
  return bytes_of(gradients);
}

class ReplicaBench {
 public:
  ReplicaBench(const ReplicaPlan& plan, Group& group)
      : plan_(plan), group_(group), replica_(plan.c, group, current_device(plan.c.device)) {}

  void run() {
    // Correctness first: a fast wrong answer is not measured.
    for (const std::string& implementation : plan_.implementations) {
      if (plan_.command == "ddp" && plan_.checked_steps > 0 && implementation != "none")
        check(implementation);
    }
    for (int64_t turn = 0; turn < plan_.turns; ++turn) {
      for (const std::string& implementation : plan_.implementations) {
        tell_progress(str("turn ", turn + 1, " of ", plan_.turns, ", ", implementation));
        take_turn(implementation, turn);
      }
    }
    // Last: a process that has been under the profiler can be slower afterwards.
    for (const std::string& implementation : plan_.implementations) {
      if (!plan_.traced) break;
      tell_progress("tracing " + implementation);
      trace(implementation);
    }
  }

 private:
  ParallelConfig division(const std::string& implementation) const {
    if (plan_.command == "ddp") return division_by_name(implementation);
    ParallelConfig division = sharding_by_name(implementation);
    division.wrapper = plan_.wrapper;
    division.bucket_megabytes = plan_.bucket_megabytes;
    return division;
  }

  void check(const std::string& implementation) {
    tell_progress("checking " + implementation);
    begin_unit(implementation, group_);
    Record record{.implementation = implementation};
    record.facts["weight_error"] =
        replica_.weight_error(division(implementation), plan_.checked_steps, plan_.recorded);
    hand_over_record(record);
  }

  void divide(const std::string& implementation) {
    begin_unit(implementation, group_);
    replica_.divide(division(implementation));
  }

  // The steps that are not timed; peaks of memory count from here.
  void warm_up() {
    replica_.run(plan_.recorded ? std::max(plan_.warmup, kStepsBeforeRecording) : plan_.warmup);
    synchronize(replica_.device());
    group_.barrier("beginning a turn");
    reset_peak_memory(replica_.device());
    if (!plan_.recorded) return;
    replica_.record();  // memory is taken now, and by no replay
    replica_.run(1);    // the first one uploads the graphs
  }

  void take_turn(const std::string& implementation, int64_t turn) {
    divide(implementation);
    Record record{.implementation = implementation};
    if (plan_.command == "sharding" && turn == 0) weigh(record);
    warm_up();
    const std::vector<StepTimes> times = replica_.run(1 + plan_.steps);
    record.samples["first"] = {times.front().total};
    for (size_t i = 1; i < times.size(); ++i) {
      times[i].add_to(record);
      if (!replica_.is_recorded()) record.samples["waited"].push_back(times[i].waited);
      if (replica_.device().is_cuda()) record.samples["lead"].push_back(times[i].lead);
    }
    record.samples["slowest"] = group_.all_reduce(record.series("total"), Reduce::kMax);
    record.samples["peak_bytes"] = {
        group_.all_reduce(peak_memory_bytes(replica_.device()), Reduce::kMax)};
    replica_.describe(record);
    hand_over_record(record);
  }

  // Every figure of the rank that has most of it. The second step: the first one sends its
  // gradients after backward, and makes the state.
  void weigh(Record& record) {
    synchronize(replica_.device());
    reset_peak_memory(replica_.device());
    const auto note = [&](const char* name, double bytes) {
      record.facts[name] = group_.all_reduce(bytes, Reduce::kMax);
    };
    const auto peak = [&] {
      synchronize(replica_.device());
      return peak_memory_bytes(replica_.device());
    };
    const double after_init = peak();
    replica_.run(1);
    synchronize(replica_.device());
    reset_peak_memory(replica_.device());
    replica_.make_gradients();
    const double before = peak(), gradients = gradient_bytes(replica_);
    replica_.update();
    const double after = peak();
    note("after init", after_init);
    note("before update", before);
    note("after update", after);
    note("parameters", bytes_of(replica_.model().parameters()));
    note("gradients", gradients);
    note("state", state_bytes(replica_.optimizer()));
    replica_.zero_grad();
  }

  void trace(const std::string& implementation) {
    divide(implementation);
    Record record{.implementation = implementation};
    if (plan_.command == "ddp") {
      warm_up();
      put_trace(replica_.trace_step(), record);
    } else {
      replica_.run(plan_.warmup);
      const UpdateTrace update = replica_.trace_update();
      put_trace(update.trace, record);
      record.facts["update seconds"] = update.seconds;
      record.facts["host"] = update.host_seconds;
    }
    hand_over_record(record);
  }

  const ReplicaPlan& plan_;
  Group& group_;
  Replica replica_;
};

}  // namespace

std::vector<std::string> sharding_names() {
  return {"none", "whole", "flat", "none nccl", "whole nccl", "flat nccl", "flat scattered"};
}

ParallelConfig sharding_by_name(const std::string& name) {
  ParallelConfig division;
  division.shard_optimizer = name.substr(0, name.find(' '));
  if (name.ends_with(" nccl")) division.peer_copies = "none";
  if (name.ends_with(" scattered")) division.flat_buckets = "yes";
  return division;
}

std::string shown_name(const Record& record) {
  return shown_name(record.implementation, record.number("bucket_megabytes"));
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

void bench_replica_rank(const std::string& task) {
  const auto plan = read_task<ReplicaPlan>(task);
  const auto group = begin_rank(plan.c);
  std::optional<GpuStream> stream;
  if (plan.recorded) stream.emplace();
  ReplicaBench(plan, *group).run();
}

}  // namespace flashstep::tools
