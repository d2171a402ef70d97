#include "flashstep/report/recorder.h"

#include <filesystem>
#include <kineto/ActivityType.h>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <c10/util/Type.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "flashstep/error.h"
#include "flashstep/report/operator_work.h"

namespace flashstep::report {
namespace {

namespace profiler = torch::autograd::profiler;
using profiler::KinetoEvent;

std::optional<EventKind> kind_of(const KinetoEvent& event) {
  using libkineto::ActivityType;
  switch (static_cast<ActivityType>(event.activityType())) {
    case ActivityType::CPU_OP:
      return EventKind::kOperator;
    case ActivityType::USER_ANNOTATION:
      return EventKind::kRange;
    case ActivityType::CUDA_RUNTIME:
    case ActivityType::CUDA_DRIVER:
      return EventKind::kLaunch;
    case ActivityType::CONCURRENT_KERNEL:
      return EventKind::kKernel;
    case ActivityType::GPU_MEMCPY:
    case ActivityType::GPU_MEMSET:
      return EventKind::kCopy;
    default:
      return std::nullopt;
  }
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
  event.name = trace.names.index(name.rfind("_Z", 0) == 0 ? c10::demangle(name.c_str()) : name);
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

void save(profiler::ProfilerResult& result, const std::string& file) {
  std::error_code error;
  std::filesystem::remove(file, error);
  result.save(file);
  // Kineto logs what goes wrong and returns.
  if (std::filesystem::file_size(file, error) == 0 || error)
    throw MachineError(str("[profile] the trace could not be written to ", file));
}

}  // namespace

std::unique_ptr<profiler::ProfilerResult> profiled(Seen seen, bool shapes,
                                                   const std::function<void()>& work) {
  using torch::profiler::impl::ActivityType;
  using torch::profiler::impl::ProfilerConfig;
  using torch::profiler::impl::ProfilerState;
  std::set<ActivityType> activities;
  if (seen != Seen::kGpu) activities.insert(ActivityType::CPU);
  if (seen != Seen::kHost) activities.insert(ActivityType::CUDA);
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

TraceEvents record(at::Device device, const std::function<void()>& work, const std::string& file) {
  const auto result = profiled(device.is_cuda() ? Seen::kBoth : Seen::kHost, /*shapes=*/true, work);
  if (!file.empty()) save(*result, file);
  TraceEvents trace;
  trace.events.reserve(result->events().size());
  for (const KinetoEvent& event : result->events()) {
    if (const auto kind = kind_of(event); kind && !event.isHiddenEvent()) add(event, *kind, trace);
  }
  return trace;
}

}  // namespace flashstep::report
