#include "flashstep/report/trace_events.h"

namespace flashstep::report {

uint32_t Names::index(std::string_view name) {
  const auto known = indices_.find(name);
  if (known != indices_.end()) return known->second;
  const uint32_t index = size();
  texts_.emplace_back(name);
  indices_.emplace(texts_.back(), index);
  return index;
}

bool is_device_event(const TraceEvent& event) {
  return event.kind == EventKind::kKernel || event.kind == EventKind::kCopy;
}

}  // namespace flashstep::report
