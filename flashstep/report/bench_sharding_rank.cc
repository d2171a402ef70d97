// What a rank of `flashstep bench sharding` does, and the lines in which rank 0 tells it.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "flashstep/optim.h"
#include "flashstep/report/bench_ranks.h"
#include "flashstep/report/bench_sharding.h"
#include "flashstep/report/model_run.h"
#include "flashstep/report/rank_jobs.h"
#include "flashstep/report/replica.h"
#include "flashstep/report/trace_json.h"
#include "flashstep/sharded_optimizer.h"

namespace flashstep::report {
namespace {

using Json = nlohmann::json;
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

// The second step: the first one sends its gradients after backward, and makes the state.
ShardingMemory measure_memory(Replica& replica) {
  ShardingMemory memory;
  const auto peak = [&] {
    synchronize(replica.device());
    return peak_memory_bytes(replica.device());
  };
  memory.after_init = peak();
  replica.run(1);
  synchronize(replica.device());
  reset_peak_memory(replica.device());
  replica.backward(replica.forward());
  memory.before_step = peak();
  memory.gradients = gradient_bytes(replica);
  replica.update();
  memory.after_step = peak();
  memory.parameters = bytes_of(replica.model().parameters());
  memory.state = state_bytes(replica.optimizer());
  replica.zero_grad();
  return memory;
}

std::vector<double*> fields_of(ShardingMemory& memory) {
  return {&memory.after_init, &memory.before_step, &memory.after_step,
          &memory.parameters, &memory.gradients,   &memory.state};
}

void hand_over_update(const std::string& contestant, const UpdateTrace& update) {
  Json json = json_of(update.trace);
  json["contestant"] = contestant;
  json["update_seconds"] = update.seconds;
  json["host_seconds"] = update.host_seconds;
  hand_over(json.dump());
}

// Every figure of the rank that has most of it.
std::vector<double> largest_of_ranks(ShardingMemory memory, const Group& group) {
  std::vector<double> values;
  for (const double* field : fields_of(memory)) values.push_back(*field);
  return group.all_reduce(values, Reduce::kMax);
}

void take_line(ShardingRun& run, const Json& json) {
  for (const double seconds : json.value("optimizer", Json::array()))
    run.optimizer.push_back(seconds);
  for (const double seconds : json.value("total", Json::array())) run.total.push_back(seconds);
  run.buckets = json.value("buckets", run.buckets);
  run.gradients_transport = json.value("gradients_carrier", run.gradients_transport);
  run.updates_transport = json.value("updates_carrier", run.updates_transport);
  if (json.contains("memory")) {
    const auto fields = fields_of(run.memory);
    for (size_t i = 0; i < fields.size(); ++i) *fields[i] = json["memory"][i];
  }
  if (!json.contains("update_seconds")) return;
  run.update = trace_of(json);
  run.update_seconds = json["update_seconds"];
  run.host_seconds = json["host_seconds"];
}

}  // namespace

void ShardingPlan::visit(FieldVisitor& v) {
  v.section("case", c, "what is measured");
  v.field("contestants", contestants, "ways to divide the optimizer");
  v.field("wrapper", wrapper, {}, "how gradients are averaged");
  v.field("bucket_megabytes", bucket_megabytes, {0, 1e9}, "of a bucket; 0: chosen");
  v.field("turns", turns, {1, 1'000'000}, "of every contestant");
  v.field("warmup", warmup, {1, 1'000'000}, "steps a turn that are not timed");
  v.field("steps", steps, {1, 1'000'000}, "timed steps a turn");
  v.field("traced", traced, "one step of each contestant under the profiler");
}

void bench_sharding_rank(const std::string& task) {
  ShardingPlan plan;
  read_json(plan, task, "the task of a rank");
  const auto group = begin_rank(plan.c);
  Replica replica(workload_of(plan.c), *group, current_device(plan.c.device));
  const auto divide = [&](const std::string& contestant) {
    begin_contestant(contestant, *group);
    ParallelConfig division = sharding_by_name(contestant);
    division.wrapper = plan.wrapper;
    division.bucket_megabytes = plan.bucket_megabytes;
    replica.divide(division);
  };
  for (int64_t turn = 0; turn < plan.turns; ++turn) {
    for (const std::string& contestant : plan.contestants) {
      tell_progress(str("turn ", turn + 1, " of ", plan.turns, ", ", contestant));
      divide(contestant);
      Json json = {{"contestant", contestant}};
      if (turn == 0) {
        synchronize(replica.device());
        reset_peak_memory(replica.device());
        json["memory"] = largest_of_ranks(measure_memory(replica), *group);
      }
      replica.run(plan.warmup);
      group->barrier("beginning a turn");
      const std::vector<StepTimes> times = replica.run(1 + plan.steps);
      for (size_t i = 1; i < times.size(); ++i) {  // a training run begins no step as the first
        json["optimizer"].push_back(times[i].optimizer);
        json["total"].push_back(times[i].total);
      }
      json["buckets"] = replica.describe_buckets();
      json["gradients_carrier"] = replica.gradients_transport();
      json["updates_carrier"] = replica.updates_transport();
      hand_over(json.dump());
    }
  }
  // Last: a process that has been under the profiler can be slower afterwards.
  for (const std::string& contestant : plan.contestants) {
    if (!plan.traced) break;
    tell_progress("tracing " + contestant);
    divide(contestant);
    replica.run(plan.warmup);
    hand_over_update(contestant, replica.trace_update());
  }
}

ShardingResult sharding_result(const ShardingPlan& plan,
                               const std::vector<std::string>& handed_over) {
  ShardingResult result{plan.c, runs_of<ShardingRun>(plan.contestants)};
  for (const std::string& line : handed_over) {
    const Json json = Json::parse(line);
    for (ShardingRun& run : result.runs) {
      if (json.value("contestant", "") == run.contestant) take_line(run, json);
    }
  }
  return result;
}

}  // namespace flashstep::report
