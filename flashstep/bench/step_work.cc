#include "flashstep/bench/step_work.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/base/text.h"
#include "flashstep/measure/plot.h"
#include "flashstep/measure/spans.h"

namespace flashstep::tools {
namespace {

using measure::Span;

using ClassSeconds = std::map<WorkClass, double>;

ClassSeconds count_device(const TraceEvents& trace, Record& record) {
  ClassSeconds seconds;
  std::vector<Span> computing, communicating;
  for (const TraceEvent& event : trace.events) {
    if (!is_device_event(event)) continue;
    const WorkClass work_class = class_of_kernel(trace.names[event.name]);
    const Span span = span_of(event);
    seconds[work_class] += span.end - span.begin;
    (work_class == WorkClass::kCommunication ? communicating : computing).push_back(span);
  }
  const std::vector<Span> computed = measure::merged(computing),
                          sent = measure::merged(communicating);
  const double exposed = measure::covered_seconds(sent) - measure::shared_seconds(sent, computed);
  record.facts["exposed"] = exposed;
  record.facts["idle"] = record.number("traced") - measure::covered_seconds(computed) - exposed;
  return seconds;
}

// An operator counts in its class what it took itself; the one that called it does not count it.
ClassSeconds count_host(const TraceEvents& trace) {
  ClassSeconds seconds;
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
        seconds[class_of_operator(trace.names[callers.back()->name])] -= span.end - span.begin;
      seconds[class_of_operator(trace.names[event->name])] += span.end - span.begin;
      callers.push_back(event);
    }
  }
  return seconds;
}

constexpr int kMoments = 400;  // columns of a picture

std::string class_fact(WorkClass work_class) {
  return std::string("class ") + class_name(work_class);
}

}  // namespace

void put_step_work(const TraceEvents& trace, Record& record) {
  const bool on_device = std::any_of(trace.events.begin(), trace.events.end(), is_device_event);
  int64_t first = std::numeric_limits<int64_t>::max(), last = std::numeric_limits<int64_t>::min();
  for (const TraceEvent& event : trace.events) {
    if (on_device ? !is_device_event(event) : event.kind != EventKind::kOperator) continue;
    first = std::min(first, event.begin_ns);
    last = std::max(last, event.end_ns);
  }
  record.facts["traced"] = last < first ? 0 : 1e-9 * static_cast<double>(last - first);
  for (const auto& [work_class, seconds] :
       on_device ? count_device(trace, record) : count_host(trace)) {
    if (seconds > 0) record.facts[class_fact(work_class)] = seconds;
  }
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

void put_step_memory(const measure::MemoryTrace& trace, Record& record) {
  const measure::MemoryRange* step = measure::find_range(trace, "step");
  if (step == nullptr) return;
  std::vector<double>&at = record.samples["memory at"], &bytes = record.samples["memory"];
  for (const measure::MemoryMoment& moment : measure::timeline(trace, step->events, kMoments)) {
    const double seconds = std::max(0.0, moment.seconds - step->begin);
    if (!bytes.empty()) {  // what was there stays until now
      at.push_back(seconds);
      bytes.push_back(bytes.back());
    }
    at.push_back(seconds);
    bytes.push_back(static_cast<double>(measure::total(moment.bytes)));
  }
}

std::vector<NamedPicture> step_memory_pictures(const Records& records) {
  std::vector<NamedPicture> pictures;
  for (const auto& [name, members] : records.grouped([](const Record& r) { return r.what; })) {
    double most = 0;
    for (const Record& record : members) {
      if (record.has("memory")) most = std::max(most, record.quantile("memory", 1));
    }
    const double unit = most >= kGiB ? kGiB : kMiB;
    measure::Plot plot;
    plot.title = "Memory of a launched step, first rank";
    plot.subtitle = name;
    plot.x.label = "s";
    plot.y.label = unit == kGiB ? "GiB of tensors" : "MiB of tensors";
    for (const Record& record : members) {
      if (!record.has("memory")) continue;
      measure::Series line{.name = record.implementation, .x = record.series("memory at")};
      for (const double bytes : record.series("memory")) line.y.push_back(bytes / unit);
      plot.series.push_back(std::move(line));
    }
    if (!plot.series.empty())
      pictures.push_back({str("memory_", pictures.size() + 1), std::move(plot)});
  }
  return pictures;
}

}  // namespace flashstep::tools
