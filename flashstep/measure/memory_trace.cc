#include "flashstep/measure/memory_trace.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "flashstep/base/text.h"

namespace flashstep::measure {
namespace {

void apply(const MemoryTrace& trace, const MemoryEvent& event, KindBytes& bytes) {
  const Allocation& allocation = trace.allocations[event.allocation];
  bytes[static_cast<size_t>(allocation.kind)] +=
      event.is_free ? -allocation.bytes : allocation.bytes;
}

bool was_before(const Allocation& allocation) { return allocation.begin == kNoEvent; }

std::string_view last_name(std::string_view path) {
  return path.substr(path.find_last_of('/') + 1);  // npos + 1 is 0
}

bool is_pass(const MemoryRange& range) {
  const std::string_view name = last_name(range.path);
  return name == "forward" || name == "backward" || name == "optimizer";
}

// The outermost range around a pass: "step" of "step/forward". Nothing where it has none.
const MemoryRange* step_of(const MemoryTrace& trace, const MemoryRange& pass) {
  const size_t end = pass.path.find('/');
  if (end == std::string::npos) return nullptr;
  const std::string_view name = std::string_view(pass.path).substr(0, end);
  for (const MemoryRange& range : trace.ranges) {
    if (range.path == name && range.events.begin <= pass.events.begin &&
        range.events.end >= pass.events.end)
      return &range;
  }
  return nullptr;
}

bool is_communication(const MemorySite& site) {
  return site.operators.find("c10d::") != std::string::npos ||
         str("/", site.ranges, "/").find("/communication/") != std::string::npos;
}

// Whether it says nothing of who made an allocation: operators that only make room for others, and
// the engine's name around a node's own.
bool is_passed_over(std::string_view name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty") ||
         name.starts_with("aten::resize_") || name.starts_with("autograd::engine::");
}

// Those who record, and who only had the model run: neither asked for memory.
bool is_onlooker(std::string_view function) {
  return function.starts_with("flashstep::measure::") || function.starts_with("flashstep::tools::");
}

std::string_view without_arguments(std::string_view function) {
  return function.substr(0, function.find('('));
}

// "f (file.cc:12)"
std::string with_line(std::string_view name, const MemoryFrame& frame) {
  if (frame.line == 0) return std::string(name);
  return str(name, " (", last_name(frame.file), ":", frame.line, ")");
}

}  // namespace

const char* name_of(MemoryKind kind) {
  constexpr const char* kNames[kMemoryKinds] = {"parameters",  "gradients",   "optimizer state",
                                                "activations", "temporaries", "communication",
                                                "other"};
  return kNames[static_cast<size_t>(kind)];
}

int64_t total(const KindBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

MemoryMoment before(const MemoryTrace& trace, EventRange window) {
  MemoryMoment moment;
  for (const Allocation& allocation : trace.allocations) {
    if (was_before(allocation)) {
      moment.bytes[static_cast<size_t>(allocation.kind)] += allocation.bytes;
    }
  }
  for (uint32_t i = 0; i < window.begin; ++i) apply(trace, trace.events[i], moment.bytes);
  if (window.begin > 0) moment.event = window.begin - 1;
  if (window.begin < trace.events.size()) moment.seconds = trace.events[window.begin].seconds;
  return moment;
}

MemoryMoment peak(const MemoryTrace& trace, EventRange window) {
  MemoryMoment now = before(trace, window), greatest = now;
  int64_t most = total(now.bytes), bytes = most;
  for (uint32_t i = window.begin; i < window.end; ++i) {
    const MemoryEvent& event = trace.events[i];
    const Allocation& allocation = trace.allocations[event.allocation];
    apply(trace, event, now.bytes);
    bytes += event.is_free ? -allocation.bytes : allocation.bytes;
    if (bytes <= most) continue;
    most = bytes;
    greatest = {i, event.seconds, now.bytes};
  }
  return greatest;
}

std::vector<MemoryMoment> timeline(const MemoryTrace& trace, EventRange window, int columns) {
  std::vector<MemoryMoment> moments = {before(trace, window)};
  if (window.begin >= window.end) return moments;
  const double start = trace.events[window.begin].seconds;
  const double length = std::max(trace.events[window.end - 1].seconds - start, 1e-12);
  MemoryMoment now = moments.front(), greatest;
  int64_t bytes = total(now.bytes), most = 0;
  int column = -1;
  const auto finish = [&] {
    if (column < 0) return;
    if (greatest.event != now.event) moments.push_back(greatest);
    moments.push_back(now);
  };
  for (uint32_t i = window.begin; i < window.end; ++i) {
    const MemoryEvent& event = trace.events[i];
    const Allocation& allocation = trace.allocations[event.allocation];
    const int next =
        std::min(static_cast<int>((event.seconds - start) / length * columns), columns - 1);
    const bool is_new = next != column;
    if (is_new) finish();
    column = next;
    apply(trace, event, now.bytes);
    bytes += event.is_free ? -allocation.bytes : allocation.bytes;
    now.event = i;
    now.seconds = event.seconds;
    if (!is_new && bytes <= most) continue;
    most = bytes;
    greatest = now;
  }
  finish();
  return moments;
}

void conclude_kinds(MemoryTrace& trace) {
  std::vector<const MemoryRange*> passes, steps;  // in order; they do not overlap
  for (const MemoryRange& range : trace.ranges) {
    if (!is_pass(range)) continue;
    passes.push_back(&range);
    steps.push_back(step_of(trace, range));
  }
  for (Allocation& allocation : trace.allocations) {
    if (allocation.labelled) continue;
    allocation.kind = MemoryKind::kOther;
    if (was_before(allocation)) continue;
    const auto after = std::upper_bound(
        passes.begin(), passes.end(), allocation.begin,
        [](uint32_t event, const MemoryRange* pass) { return event < pass->events.begin; });
    const MemoryRange* pass = after == passes.begin() ? nullptr : *(after - 1);
    if (is_communication(trace.sites[allocation.site])) {
      allocation.kind = MemoryKind::kCommunication;
    } else if (pass != nullptr && allocation.begin < pass->events.end) {
      const MemoryRange* step = steps[static_cast<size_t>(after - passes.begin()) - 1];
      // Made once and kept: cuBLAS's workspaces, tables that were moved to the GPU.
      if (step != nullptr && allocation.end >= step->events.end) continue;
      const bool stays = last_name(pass->path) == "forward" && allocation.end >= pass->events.end;
      allocation.kind = stays ? MemoryKind::kActivations : MemoryKind::kTemporaries;
    }
  }
}

const MemoryRange* find_range(const MemoryTrace& trace, std::string_view path) {
  const auto found = std::find_if(trace.ranges.rbegin(), trace.ranges.rend(),
                                  [&](const MemoryRange& range) { return range.path == path; });
  return found == trace.ranges.rend() ? nullptr : &*found;
}

bool is_within(std::string_view ranges, std::string_view path) {
  return ranges.starts_with(path) && (ranges.size() == path.size() || ranges[path.size()] == '/');
}

std::string source_of(const MemoryTrace& trace, const MemorySite& site) {
  for (const uint32_t index : site.frames) {
    const MemoryFrame& frame = trace.frames[index];
    const std::string_view name = without_arguments(frame.function);
    if (name.starts_with("flashstep::") && !is_onlooker(name)) return with_line(name, frame);
  }
  // A snapshot of a Python program: its own code, not PyTorch's.
  for (const uint32_t index : site.frames) {
    const MemoryFrame& frame = trace.frames[index];
    if (frame.file.ends_with(".py") && frame.file.find("/torch/") == std::string::npos) {
      return with_line(frame.function, frame);
    }
  }
  return "";
}

std::string maker_of(const MemoryTrace& trace, const MemorySite& site) {
  std::string_view rest = site.operators, first, last;
  while (!rest.empty()) {
    const std::string_view name = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
    if (is_passed_over(name)) continue;
    if (first.empty()) first = name;
    last = name;
  }
  if (first.empty()) {
    const std::string source = source_of(trace, site);
    return source.empty() ? std::string(site.operators) : source;
  }
  return first == last ? std::string(first) : str(first, " > ", last);
}

}  // namespace flashstep::measure
