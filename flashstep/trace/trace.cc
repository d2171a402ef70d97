#include "flashstep/trace/trace.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <kineto/ActivityType.h>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <c10/util/Type.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/trace/work_class.h"

namespace flashstep::tools {
namespace {

namespace profiler = torch::autograd::profiler;
using profiler::KinetoEvent;
using torch::profiler::impl::ActivityType;

std::optional<EventKind> kind_of(const KinetoEvent& event) {
  const auto type = static_cast<libkineto::ActivityType>(event.activityType());
  return kind_of_category(libkineto::toString(type));
}

OperatorWork work_of(const KinetoEvent& event, const std::string& name) {
  if (!event.hasShapes() || !event.hasTypes() || !operator_works(name)) return {};
  std::vector<Operand> operands;
  const auto shapes = event.shapes();
  const auto dtypes = event.dtypes();
  for (size_t i = 0; i < shapes.size() && i < dtypes.size(); ++i)
    operands.push_back({shapes[i], profiled_element_bytes(dtypes[i])});
  return operator_work(name, operands);
}

void add(const KinetoEvent& recorded, EventKind kind, TraceEvents& trace) {
  const std::string name = recorded.name();
  TraceEvent event;
  event.kind = kind;
  event.name = trace.names.index(name.starts_with("_Z") ? c10::demangle(name.c_str()) : name);
  event.begin_ns = static_cast<int64_t>(recorded.startNs());
  event.end_ns = static_cast<int64_t>(recorded.endNs());
  const bool on_host = kind == EventKind::kOperator || kind == EventKind::kRange;
  event.id = on_host ? recorded.correlationId() : recorded.linkedCorrelationId();
  if (on_host) {
    event.lane = static_cast<uint32_t>(recorded.startThreadId());
    event.sequence = recorded.sequenceNr();
    if (recorded.fwdThreadId() != 0)
      event.forward_thread = static_cast<uint32_t>(recorded.fwdThreadId());
  } else {
    event.correlation = recorded.correlationId();
    event.lane = static_cast<uint32_t>(recorded.deviceResourceId());
  }
  if (kind == EventKind::kOperator) {
    const OperatorWork work = work_of(recorded, name);
    event.flops = work.flops;
    event.bytes = work.bytes;
  }
  trace.events.push_back(event);
}

TraceEvents events_of(const profiler::ProfilerResult& result) {
  TraceEvents trace;
  trace.events.reserve(result.events().size());
  for (const KinetoEvent& event : result.events()) {
    if (const auto kind = kind_of(event); kind && !event.isHiddenEvent()) add(event, *kind, trace);
  }
  return trace;
}

void save(profiler::ProfilerResult& result, const std::string& file) {
  std::error_code error;
  std::filesystem::remove(file, error);
  result.save(file);
  // Kineto logs what goes wrong and returns.
  if (std::filesystem::file_size(file, error) > 0 && !error) return;
  const auto left = std::filesystem::space(std::filesystem::absolute(file).parent_path(), error);
  const bool is_full = !error && left.available < (uint64_t{1} << 20);
  for (const char* end : {"", ".tmp"}) std::filesystem::remove(file + end, error);
  throw MachineError(str("[profile] the trace could not be written to ", file,
                         is_full ? ": the disk is full" : ""));
}

// What the profiler saw of `work`: of the CPU operators and ranges, of CUDA kernels and copies.
std::unique_ptr<profiler::ProfilerResult> profiled(const std::set<ActivityType>& activities,
                                                   bool shapes, const std::function<void()>& work) {
  using torch::profiler::impl::ProfilerConfig;
  using torch::profiler::impl::ProfilerState;
  // Without a GPU Kineto complains of that at its first start.
  if (!activities.contains(ActivityType::CUDA)) ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  const ProfilerConfig config(ProfilerState::KINETO, shapes, /*profile_memory=*/false,
                              /*with_stack=*/false, /*with_flops=*/false, /*with_modules=*/false);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  try {
    work();
  } catch (...) {
    profiler::disableProfiler();
    throw;
  }
  return profiler::disableProfiler();
}

using measure::Span;

void sort_gpu_events(const TraceEvents& recorded, Trace& trace) {
  std::map<uint32_t, std::vector<Span>> by_stream;
  for (const TraceEvent& event : recorded.events) {
    if (!is_device_event(event)) continue;
    const WorkClass work_class = class_of_kernel(recorded.names[event.name]);
    auto& spans =
        work_class == WorkClass::kCommunication ? trace.communication : by_stream[event.lane];
    spans.push_back(span_of(event));
  }
  const auto busiest = std::ranges::max_element(
      by_stream, {}, [](const auto& stream) { return measure::covered_seconds(stream.second); });
  for (auto stream = by_stream.begin(); stream != by_stream.end(); ++stream) {
    auto& lane = stream == busiest ? trace.compute : trace.copies;
    const auto spans = measure::merged(stream->second, stream == busiest ? kLaunchGap : 0);
    lane.insert(lane.end(), spans.begin(), spans.end());
  }
}

void sort_cpu_events(const TraceEvents& recorded, Trace& trace) {
  for (const TraceEvent& event : recorded.events) {
    const std::string& name = recorded.names[event.name];
    if (name.starts_with("gloo:")) {
      trace.communication.push_back(span_of(event));
    } else if (name.starts_with("aten::") || name.starts_with("flashstep::")) {
      trace.compute.push_back(span_of(event));
    }
  }
}

std::vector<Span> all_spans(const Trace& trace) {
  std::vector<Span> all = trace.compute;
  for (const auto* lane : {&trace.copies, &trace.communication})
    all.insert(all.end(), lane->begin(), lane->end());
  return all;
}

}  // namespace

TraceEvents record(at::Device device, const std::function<void()>& work, const std::string& file) {
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  const auto result = profiled(activities, /*shapes=*/true, work);
  if (!file.empty()) save(*result, file);
  return events_of(*result);
}

double Trace::compute_seconds() const { return measure::covered_seconds(compute); }

double Trace::communication_seconds() const { return measure::covered_seconds(communication); }

double Trace::exposed_seconds() const {
  return communication_seconds() - measure::shared_seconds(communication, compute);
}

double Trace::hidden_share() const {
  const double all = communication_seconds();
  return all > 0 ? 1 - exposed_seconds() / all : std::numeric_limits<double>::quiet_NaN();
}

double Trace::busy_seconds() const { return measure::covered_seconds(all_spans(*this)); }

double Trace::seconds() const {
  double end = 0;
  for (const Span& span : all_spans(*this)) end = std::max(end, span.end);
  return end;
}

void count_from_first(Trace& trace) {
  double first = std::numeric_limits<double>::infinity();
  for (const Span& span : all_spans(trace)) first = std::min(first, span.begin);
  for (auto* lane : {&trace.compute, &trace.copies, &trace.communication}) {
    for (Span& span : *lane) span = {span.begin - first, span.end - first};
  }
  trace.compute = measure::merged(std::move(trace.compute));
  trace.copies = measure::merged(std::move(trace.copies));
  std::ranges::sort(trace.communication, {}, &Span::begin);
}

Trace last_part(const Trace& trace, double seconds) {
  // A thread of Gloo's may note a collective's end when its result has been used already.
  const double end = trace.compute.empty() ? trace.seconds() : trace.compute.back().end;
  const double begin = end - seconds;
  Trace part = trace;
  std::erase_if(part.communication, [&](const Span& span) { return span.begin < begin; });
  for (auto* lane : {&part.compute, &part.copies, &part.communication}) {
    std::erase_if(*lane, [&](const Span& span) { return span.end <= begin; });
    for (Span& span : *lane) span = {std::max(span.begin - begin, 0.0), span.end - begin};
  }
  return part;
}

Trace trace(c10::Device device, const std::function<void()>& work) {
  // On a GPU the host's operators stay out: recording them would slow the host down.
  const auto result = profiled({device.is_cuda() ? ActivityType::CUDA : ActivityType::CPU},
                               /*shapes=*/false, work);
  Trace trace;
  (device.is_cuda() ? sort_gpu_events : sort_cpu_events)(events_of(*result), trace);
  if (trace.compute.empty()) trace.failure = "the profiler has seen no work on the device";
  count_from_first(trace);
  return trace;
}

measure::LaneGroup lanes_of(const Trace& trace, const std::string& title) {
  measure::LaneGroup group = {title, {}};
  const auto add = [&](const char* name, const std::vector<Span>& spans, int color) {
    if (spans.empty()) return;
    group.lanes.push_back(
        {name, spans, color, fixed(measure::covered_seconds(spans) * 1e3, 1) + " ms"});
  };
  add("compute", trace.compute, 0);
  add("copies", trace.copies, 4);
  add("communication", trace.communication, 1);
  return group;
}

}  // namespace flashstep::tools
