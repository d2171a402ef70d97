#include "flashstep/bench/step_work.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/base/text.h"
#include "flashstep/measure/plot.h"
#include "flashstep/trace/trace.h"
#include "flashstep/trace/trace_attribution.h"

namespace flashstep::tools {
namespace {

constexpr int kMoments = 400;  // columns of a picture

std::string class_fact(WorkClass work_class) {
  return std::string("class ") + class_name(work_class);
}

}  // namespace

void put_step_work(const TraceEvents& trace, Record& record) {
  const Attribution work = attribute(trace);
  std::map<WorkClass, double> seconds;
  Trace lanes;
  for (const WorkItem& item : work.items) {
    const TraceEvent& event = trace.events[item.event];
    if (event.kind == EventKind::kRange) continue;
    seconds[item.work_class] += 1e-9 * static_cast<double>(item.self_ns);
    const bool sends = item.work_class == WorkClass::kCommunication;
    (sends ? lanes.communication : lanes.compute).push_back(span_of(event));
  }
  count_from_first(lanes);
  record.facts["traced"] = lanes.seconds();
  for (const auto& [work_class, of_class] : seconds) {
    if (of_class > 0) record.facts[class_fact(work_class)] = of_class;
  }
  if (!work.on_gpu) return;
  record.facts["exposed"] = lanes.exposed_seconds();
  record.facts["idle"] = lanes.seconds() - lanes.busy_seconds();
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
