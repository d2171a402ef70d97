// What a rank of `flashstep bench ddp` does, and the lines in which rank 0 tells it.
#include <algorithm>
#include <limits>
#include <optional>

#include <nlohmann/json.hpp>

#include "flashstep/error.h"
#include "flashstep/report/bench_ddp.h"
#include "flashstep/report/bench_ranks.h"
#include "flashstep/report/gpu_timing.h"
#include "flashstep/report/model_run.h"
#include "flashstep/report/rank_jobs.h"
#include "flashstep/report/replica.h"
#include "flashstep/report/trace_json.h"

namespace flashstep::report {
namespace {

using Json = nlohmann::json;

// JSON has no NaN: null stands for it.
double number_or_nan(const Json& json) {
  return json.is_number() ? json.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

// The first step, which no step of a training run is like, is kept apart.
void hand_over_turn(const std::string& contestant, const std::vector<StepTimes>& times,
                    double peak_bytes, const Replica& replica, const Group& group) {
  std::vector<double> slowest;
  for (size_t i = 1; i < times.size(); ++i) slowest.push_back(times[i].total);
  slowest = group.all_reduce(slowest, Reduce::kMax);
  Json json = {{"contestant", contestant},
               {"peak_bytes", peak_bytes},
               {"bucket_megabytes", replica.bucket_megabytes()},
               {"slowest", slowest},
               {"carrier", replica.gradients_transport()},
               {"first", Json::array({times.front().total})}};
  const bool recorded = replica.is_recorded();
  for (size_t i = 1; i < times.size(); ++i) {
    const StepTimes& t = times[i];
    json["forward"].push_back(t.forward);
    json["backward"].push_back(t.backward);
    if (!recorded) json["waited"].push_back(t.waited);
    json["optimizer"].push_back(t.optimizer);
    json["total"].push_back(t.total);
    if (replica.device().is_cuda()) json["lead"].push_back(t.lead);
  }
  hand_over(json.dump());
}

// Divided as `contestant` says, after the steps that are not timed.
void prepare(Replica& replica, const DdpPlan& plan, const std::string& contestant, Group& group) {
  begin_contestant(contestant, group);
  replica.divide(division_by_name(contestant));
  replica.run(plan.recorded ? std::max(plan.warmup, kStepsBeforeRecording) : plan.warmup);
  synchronize(replica.device());
  group.barrier("beginning a turn");
  reset_peak_memory(replica.device());
  if (!plan.recorded) return;
  replica.record();  // memory is taken now, and by no replay
  replica.run(1);    // the first one uploads the graphs
}

void take_turn(Replica& replica, const DdpPlan& plan, const std::string& contestant, Group& group) {
  prepare(replica, plan, contestant, group);
  const std::vector<StepTimes> times = replica.run(1 + plan.steps);
  const double peak = group.all_reduce(peak_memory_bytes(replica.device()), Reduce::kMax);
  hand_over_turn(contestant, times, peak, replica, group);
}

void trace_step(Replica& replica, const DdpPlan& plan, const std::string& contestant,
                Group& group) {
  prepare(replica, plan, contestant, group);
  Json trace = json_of(replica.trace_step());
  trace["contestant"] = contestant;
  hand_over(trace.dump());
}

void append(std::vector<double>& to, const Json& json, const char* key) {
  if (!json.contains(key)) return;
  for (const Json& value : json[key]) to.push_back(number_or_nan(value));
}

void take_line(DdpRun& run, const Json& json) {
  append(run.forward, json, "forward");
  append(run.backward, json, "backward");
  append(run.waited, json, "waited");
  append(run.optimizer, json, "optimizer");
  append(run.total, json, "total");
  append(run.first, json, "first");
  append(run.slowest, json, "slowest");
  append(run.lead, json, "lead");
  if (json.contains("peak_bytes"))
    run.peak_bytes = std::max(run.peak_bytes, number_or_nan(json["peak_bytes"]));
  run.transport = json.value("carrier", run.transport);
  run.bucket_megabytes = json.value("bucket_megabytes", run.bucket_megabytes);
  if (json.contains("weight_error")) run.weight_error = number_or_nan(json["weight_error"]);
  if (!json.contains("compute")) return;
  run.trace = trace_of(json);
  if (!run.trace.trouble.empty()) return;
  run.communication = run.trace.communication_seconds();
  run.exposed = run.trace.exposed_seconds();
  run.hidden = run.trace.hidden_share();
}

}  // namespace

void DdpPlan::visit(FieldVisitor& v) {
  constexpr Range<int64_t> kCount = {0, 1'000'000};
  v.section("case", c, "what is measured");
  v.field("contestants", contestants, "wrappers, with the megabytes of their buckets");
  v.field("turns", turns, {1, 1'000'000}, "of every contestant");
  v.field("warmup", warmup, kCount, "steps a turn that are not timed");
  v.field("steps", steps, {1, 1'000'000}, "timed steps a turn");
  v.field("checked_steps", checked_steps, kCount, "of the comparison of weights");
  v.field("traced", traced, "one step of each contestant under the profiler");
  v.field("recorded", recorded, "timed steps are replays of CUDA graphs");
}

void bench_ddp_rank(const std::string& task) {
  DdpPlan plan;
  read_json(plan, task, "the task of a rank");
  const auto group = begin_rank(plan.c);
  std::optional<GpuStream> stream;
  if (plan.recorded) stream.emplace();
  Replica replica(workload_of(plan.c), *group, current_device(plan.c.device));
  // Correctness first: a fast wrong answer is not measured.
  for (const std::string& contestant : plan.contestants) {
    if (plan.checked_steps == 0 || contestant == "none") continue;
    tell_progress("checking " + contestant);
    begin_contestant(contestant, *group);
    const double error =
        replica.weight_error(division_by_name(contestant), plan.checked_steps, plan.recorded);
    hand_over(Json({{"contestant", contestant}, {"weight_error", error}}).dump());
  }
  for (int64_t turn = 0; turn < plan.turns; ++turn) {
    for (const std::string& contestant : plan.contestants) {
      tell_progress(str("turn ", turn + 1, " of ", plan.turns, ", ", contestant));
      take_turn(replica, plan, contestant, *group);
    }
  }
  // Last: a process that has been under the profiler can be slower afterwards.
  for (const std::string& contestant : plan.contestants) {
    if (!plan.traced) break;
    tell_progress("tracing " + contestant);
    trace_step(replica, plan, contestant, *group);
  }
  hand_over(Json({{"ends", true}}).dump());
}

DdpResult ddp_result(const DdpPlan& plan, const std::vector<std::string>& handed_over) {
  DdpResult result{plan.c, runs_of<DdpRun>(plan.contestants), plan.recorded};
  for (const std::string& line : handed_over) {
    const Json json = Json::parse(line);
    if (!json.contains("contestant")) continue;
    for (DdpRun& run : result.runs) {
      if (run.contestant == json["contestant"].get<std::string>()) take_line(run, json);
    }
  }
  return result;
}

}  // namespace flashstep::report
