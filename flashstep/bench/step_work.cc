#include "flashstep/bench/step_work.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "flashstep/measure/spans.h"

namespace flashstep::tools {
namespace {

using measure::Span;

Span span_of(const TraceEvent& event) {
  return {1e-9 * static_cast<double>(event.begin_ns), 1e-9 * static_cast<double>(event.end_ns)};
}

double& of(StepWork& work, WorkClass work_class) {
  return work.of_class[static_cast<size_t>(work_class)];
}

void count_device(const TraceEvents& trace, StepWork& work) {
  std::vector<Span> computing, communicating;
  for (const TraceEvent& event : trace.events) {
    if (!is_device_event(event)) continue;
    const WorkClass work_class = class_of_kernel(trace.names[event.name]);
    const Span span = span_of(event);
    of(work, work_class) += span.end - span.begin;
    (work_class == WorkClass::kCommunication ? communicating : computing).push_back(span);
  }
  const std::vector<Span> computed = measure::merged(computing), sent = measure::merged(communicating);
  work.exposed = measure::covered_seconds(sent) - measure::shared_seconds(sent, computed);
  work.idle = work.traced - measure::covered_seconds(computed) - work.exposed;
}

// An operator counts in its class what it took itself; the one that called it does not count it.
void count_host(const TraceEvents& trace, StepWork& work) {
  std::map<uint32_t, std::vector<const TraceEvent*>> threads;
  for (const TraceEvent& event : trace.events) {
    if (event.kind == EventKind::kOperator) threads[event.lane].push_back(&event);
  }
  for (auto& [lane, events] : threads) {
    std::sort(events.begin(), events.end(), [](const TraceEvent* a, const TraceEvent* b) {
      return a->begin_ns != b->begin_ns ? a->begin_ns < b->begin_ns : a->end_ns > b->end_ns;
    });
    std::vector<const TraceEvent*> callers;
    for (const TraceEvent* event : events) {
      const Span span = span_of(*event);
      while (!callers.empty() && callers.back()->end_ns <= event->begin_ns) callers.pop_back();
      if (!callers.empty())
        of(work, class_of_operator(trace.names[callers.back()->name])) -= span.end - span.begin;
      of(work, class_of_operator(trace.names[event->name])) += span.end - span.begin;
      callers.push_back(event);
    }
  }
}

std::string class_fact(WorkClass work_class) { return std::string("class ") + class_name(work_class); }

}  // namespace

StepWork step_work(const TraceEvents& trace) {
  StepWork work;
  const bool on_device = std::any_of(trace.events.begin(), trace.events.end(), is_device_event);
  int64_t first = std::numeric_limits<int64_t>::max(), last = std::numeric_limits<int64_t>::min();
  for (const TraceEvent& event : trace.events) {
    if (on_device ? !is_device_event(event) : event.kind != EventKind::kOperator) continue;
    first = std::min(first, event.begin_ns);
    last = std::max(last, event.end_ns);
  }
  if (last < first) return work;
  work.traced = 1e-9 * static_cast<double>(last - first);
  work.of_device = on_device;
  on_device ? count_device(trace, work) : count_host(trace, work);
  return work;
}

void put_step_work(const StepWork& work, Record& record) {
  record.facts["traced"] = work.traced;
  for (const WorkClass work_class : all_work_classes()) {
    const double seconds = work.of_class[static_cast<size_t>(work_class)];
    if (seconds > 0) record.facts[class_fact(work_class)] = seconds;
  }
  if (!work.of_device) return;
  record.facts["exposed"] = work.exposed;
  record.facts["idle"] = work.idle;
}

Schema step_work_schema(const Records& records) {
  Schema schema;
  const auto add = [&](const std::string& name, const std::string& unit, const std::string& of_fact,
                       int digits, double factor) {
    if (std::any_of(records.begin(), records.end(),
                    [&](const Record& record) { return record.facts.contains(of_fact); }))
      schema.push_back({measure::number_column(name, unit, digits), fact(of_fact, factor)});
  };
  add("traced step", "ms", "traced", 1, 1e3);
  for (const WorkClass work_class : all_work_classes())
    add(class_name(work_class), "ms", class_fact(work_class), 1, 1e3);
  add("exposed", "ms", "exposed", 1, 1e3);
  add("idle", "ms", "idle", 1, 1e3);
  add("power", "W", "watts", 0, 1);
  add("SM clock", "MHz", "clock", 0, 1);
  return schema;
}

}  // namespace flashstep::tools
