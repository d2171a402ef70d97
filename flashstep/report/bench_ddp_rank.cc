// What a rank of `flashstep bench ddp` does, and the lines in which rank 0 tells it.
#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "flashstep/base/error.h"
#include "flashstep/report/bench_ddp.h"
#include "flashstep/report/bench_ranks.h"
#include "flashstep/report/model_run.h"
#include "flashstep/report/rank_jobs.h"
#include "flashstep/report/replica.h"

namespace flashstep::report {
namespace {

using Json = nlohmann::json;
using measure::Span;

Json json_of(const std::vector<Span>& spans) {
  Json json = Json::array();
  for (const Span& span : spans) {
    json.push_back(std::round(span.begin * 1e7) * 1e-7);  // Kineto's own grain is finer
    json.push_back(std::round(span.end * 1e7) * 1e-7);
  }
  return json;
}

std::vector<Span> spans_of(const Json& json) {
  std::vector<Span> spans;
  for (size_t i = 0; i + 1 < json.size(); i += 2) spans.push_back({json[i], json[i + 1]});
  return spans;
}

// JSON has no NaN: null stands for it.
double number_or_nan(const Json& json) {
  return json.is_number() ? json.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

void hand_over_turn(const std::string& contestant, const std::vector<StepTimes>& times,
                    double peak_bytes) {
  Json json = {{"contestant", contestant}, {"peak_bytes", peak_bytes}};
  for (const StepTimes& t : times) {
    json["forward"].push_back(t.forward);
    json["backward"].push_back(t.backward);
    json["optimizer"].push_back(t.optimizer);
    json["total"].push_back(t.total);
  }
  hand_over(json.dump());
}

void hand_over_trace(const std::string& contestant, const Trace& trace) {
  hand_over(Json({{"contestant", contestant},
                  {"compute", json_of(trace.compute)},
                  {"copies", json_of(trace.copies)},
                  {"communication", json_of(trace.communication)},
                  {"trace_trouble", trace.trouble}})
                .dump());
}

void take_turn(Replica& replica, const DdpPlan& plan, const std::string& contestant, bool last,
               comm::Group& group) {
  replica.divide(division_by_name(contestant));
  replica.run(plan.warmup);
  synchronize(replica.device());
  group.barrier("beginning a turn");
  reset_peak_memory(replica.device());
  const std::vector<StepTimes> times = replica.run(plan.steps);
  const double peak = group.all_reduce(peak_memory_bytes(replica.device()), comm::Reduce::kMax);
  hand_over_turn(contestant, times, peak);
  if (last && plan.traced) hand_over_trace(contestant, replica.trace_step());
}

void append(std::vector<double>& to, const Json& json, const char* key) {
  if (!json.contains(key)) return;
  for (const Json& value : json[key]) to.push_back(number_or_nan(value));
}

void take_line(DdpRun& run, const Json& json) {
  append(run.forward, json, "forward");
  append(run.backward, json, "backward");
  append(run.optimizer, json, "optimizer");
  append(run.total, json, "total");
  if (json.contains("peak_bytes"))
    run.peak_bytes = std::max(run.peak_bytes, number_or_nan(json["peak_bytes"]));
  if (json.contains("weight_error")) run.weight_error = number_or_nan(json["weight_error"]);
  if (!json.contains("compute")) return;
  run.trace = {spans_of(json["compute"]), spans_of(json["copies"]), spans_of(json["communication"]),
               json["trace_trouble"].get<std::string>()};
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
}

void bench_ddp_rank(const std::string& task) {
  DdpPlan plan;
  read_json(plan, task, "the task of a rank");
  const auto group = begin_rank(plan.c);
  Replica replica(workload_of(plan.c), *group, current_device(plan.c.device));
  // Correctness first: a fast wrong answer is not measured.
  for (const std::string& contestant : plan.contestants) {
    if (plan.checked_steps == 0 || contestant == "none") continue;
    tell_progress("checking " + contestant);
    hand_over(Json({{"begins", contestant}}).dump());
    const double error = replica.weight_error(division_by_name(contestant), plan.checked_steps);
    hand_over(Json({{"contestant", contestant}, {"weight_error", error}}).dump());
  }
  for (int64_t turn = 0; turn < plan.turns; ++turn) {
    for (const std::string& contestant : plan.contestants) {
      tell_progress(str("turn ", turn + 1, " of ", plan.turns, ", ", contestant));
      hand_over(Json({{"begins", contestant}}).dump());
      take_turn(replica, plan, contestant, turn + 1 == plan.turns, *group);
    }
  }
  hand_over(Json({{"ends", true}}).dump());
}

DdpResult ddp_result(const DdpPlan& plan, const std::vector<std::string>& handed_over) {
  DdpResult result{plan.c, runs_of<DdpRun>(plan.contestants)};
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
