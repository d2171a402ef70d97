// What a rank of `flashstep bench ddp` and `bench sharding` does.
#include <algorithm>
#include <optional>

#include "flashstep/bench/ddp_and_sharding.h"
#include "flashstep/bench/gpu_timing.h"
#include "flashstep/bench/model_run.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/replica.h"
#include "flashstep/error.h"
#include "flashstep/optim.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/trace/trace.h"

namespace flashstep::tools {
namespace {

using at::Tensor;

double bytes_of(const std::vector<Tensor>& tensors) {
  double bytes = 0;
  for (const Tensor& tensor : tensors) {
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
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : replica.model().parameters())
    gradients.push_back(parameter.grad());
  return bytes_of(gradients);
}

class RankBench {
 public:
  RankBench(const ReplicaPlan& plan, Group& group)
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
    std::vector<double> totals;
    for (size_t i = 1; i < times.size(); ++i) {
      const StepTimes& t = times[i];
      record.samples["forward"].push_back(t.forward);
      record.samples["backward"].push_back(t.backward);
      if (!replica_.is_recorded()) record.samples["waited"].push_back(t.waited);
      record.samples["optimizer"].push_back(t.optimizer);
      if (replica_.device().is_cuda()) record.samples["lead"].push_back(t.lead);
      totals.push_back(t.total);
    }
    record.samples["total"] = totals;
    record.samples["slowest"] = group_.all_reduce(totals, Reduce::kMax);
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
    replica_.backward(replica_.forward());
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

void ReplicaPlan::visit(FieldVisitor& v) {
  constexpr Range<int64_t> kCount = {0, 1'000'000};
  v.section("case", c, "what is measured");
  v.field("command", command, {"ddp", "sharding"}, "what implementations differ in");
  v.field("implementations", implementations, "ways to divide the work");
  v.field("turns", turns, {1, 1'000'000}, "of every implementation");
  v.field("warmup", warmup, kCount, "steps a turn that are not timed");
  v.field("steps", steps, {1, 1'000'000}, "timed steps a turn");
  v.field("traced", traced, "one step of each implementation under the profiler");
  v.field("checked_steps", checked_steps, kCount, "of the comparison of weights");
  v.field("recorded", recorded, "timed steps are replays of CUDA graphs");
  v.field("wrapper", wrapper, {}, "how gradients are averaged");
  v.field("bucket_megabytes", bucket_megabytes, {0, 1e9}, "of a bucket; 0: chosen");
}

void bench_replica_rank(const std::string& task) {
  ReplicaPlan plan;
  read_json(plan, task, "the task of a rank");
  const auto group = begin_rank(plan.c);
  std::optional<GpuStream> stream;
  if (plan.recorded) stream.emplace();
  RankBench(plan, *group).run();
}

}  // namespace flashstep::tools
