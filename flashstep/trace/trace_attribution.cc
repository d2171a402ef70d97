#include "flashstep/trace/trace_attribution.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "flashstep/measure/profiler_ranges.h"

namespace flashstep::tools {
namespace {

std::optional<Pass> pass_of_range(const std::string& name) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kOptimizer}) {
    if (name == pass_name(pass)) return pass;
  }
  return std::nullopt;
}

// "ProfilerStep#3" is what PyTorch's profiler calls the steps of a schedule.
bool is_step(const std::string& name) {
  return name == "step" || name.rfind("ProfilerStep#", 0) == 0;
}

// The range in which a moment lies; null without one. They are sorted and do not overlap.
const RangeTime* range_at(const std::vector<RangeTime>& ranges, int64_t ns) {
  const auto after = std::ranges::upper_bound(ranges, ns, {}, &RangeTime::begin_ns);
  if (after == ranges.begin()) return nullptr;
  const RangeTime& candidate = *std::prev(after);
  return ns < candidate.end_ns ? &candidate : nullptr;
}

// By name index: what a range is, found out once.
enum class RangeRole : uint8_t { kPlain, kPass, kStep, kWarmup, kEnd };

// Where a host event belongs.
struct Place {
  RangeOfBlock within = {};
  int64_t self_ns = 0;
  bool counts_work = false, is_call = true;
};

class Attributor {
 public:
  explicit Attributor(const TraceEvents& trace) : trace_(trace) {}

  Attribution run() {
    find_frames();
    order_host_events();
    // First what autograd's numbers belong to, then, with that, everything.
    sweep(/*resolved=*/false);
    places_.assign(trace_.events.size(), {});
    sweep(/*resolved=*/true);
    result_.on_gpu = std::ranges::any_of(trace_.events, is_device_event);
    add_host_work();
    if (result_.on_gpu) add_device_items();
    std::ranges::sort(result_.items, {}, &WorkItem::begin_ns);
    return std::move(result_);
  }

 private:
  // An event that is running at the moment of the sweep.
  struct Running {
    uint32_t event;
    RangeOfBlock within;
    int64_t end_ns, inner_ns = 0;
    bool inside_product, inner_counts = false;
  };
  // The range in which autograd's next number was `sequence`.
  struct SequencePoint {
    int64_t sequence;
    RangeOfBlock within;
  };

  const std::string& name_of(const TraceEvent& event) const { return trace_.names[event.name]; }

  void find_frames() {
    roles_.assign(trace_.names.size(), RangeRole::kPlain);
    for (uint32_t i = 0; i < trace_.names.size(); ++i) {
      const std::string& name = trace_.names[i];
      if (pass_of_range(name)) roles_[i] = RangeRole::kPass;
      if (is_step(name)) roles_[i] = RangeRole::kStep;
      if (name == "warm-up") roles_[i] = RangeRole::kWarmup;
      if (name == measure::kRangeEnd) roles_[i] = RangeRole::kEnd;
    }
    for (const TraceEvent& e : trace_.events) {
      if (e.kind == EventKind::kRange && roles_[e.name] == RangeRole::kWarmup)
        warmups_.push_back({e.begin_ns, e.end_ns});
    }
    std::ranges::sort(warmups_, {}, &RangeTime::begin_ns);
    for (const TraceEvent& e : trace_.events) {
      if (e.kind != EventKind::kRange || range_at(warmups_, e.begin_ns)) continue;
      if (roles_[e.name] == RangeRole::kPass)
        result_.passes.push_back({e.begin_ns, e.end_ns, *pass_of_range(name_of(e))});
      if (roles_[e.name] == RangeRole::kStep) result_.steps.push_back({e.begin_ns, e.end_ns});
    }
    std::ranges::sort(result_.steps, {}, &RangeTime::begin_ns);
    std::ranges::sort(result_.passes, {}, &RangeTime::begin_ns);
  }

  // Thread by thread; what encloses comes before what it encloses.
  void order_host_events() {
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const EventKind kind = trace_.events[i].kind;
      if (kind == EventKind::kOperator || kind == EventKind::kRange) host_.push_back(i);
    }
    std::ranges::sort(host_, {}, [this](uint32_t i) {
      const TraceEvent& event = trace_.events[i];
      return std::tuple(event.lane, event.begin_ns, -event.end_ns, event.id);
    });
  }

  void sweep(bool resolved) {
    std::vector<Running> stack;
    uint32_t lane = kNoThread;
    const auto end_all_before = [&](int64_t ns) {
      while (!stack.empty() && stack.back().end_ns <= ns) end_one(stack, resolved);
    };
    for (const uint32_t index : host_) {
      const TraceEvent& event = trace_.events[index];
      if (event.lane != lane) end_all_before(INT64_MAX);
      lane = event.lane;
      end_all_before(event.begin_ns);
      if (roles_[event.name] == RangeRole::kEnd) {  // its time is that of what is around it
        const RangeOfBlock around = stack.empty() ? RangeOfBlock{} : stack.back().within;
        if (!resolved && event.sequence >= 0) points_[lane].push_back({event.sequence, around});
        continue;
      }
      begin_one(stack, index, resolved);
      if (!resolved && event.sequence >= 0 && event.forward_thread == kNoThread)
        points_[lane].push_back({event.sequence, stack.back().within});
    }
    end_all_before(INT64_MAX);
  }

  void begin_one(std::vector<Running>& stack, uint32_t index, bool resolved) {
    const TraceEvent& event = trace_.events[index];
    const Running* around = stack.empty() ? nullptr : &stack.back();
    Running running{.event = index,
                    .within = around != nullptr ? around->within : RangeOfBlock{},
                    .end_ns = event.end_ns,
                    .inside_product = around != nullptr && around->inside_product};
    // Two clocks' rounding may let the inner one end a nanosecond later.
    if (around != nullptr) running.end_ns = std::min(running.end_ns, around->end_ns);
    if (event.kind == EventKind::kRange) {
      running.within = range_within(running.within, event);
    } else if (resolved) {
      if (event.forward_thread != kNoThread) running.within = range_of_node(event, running.within);
      places_[index].counts_work = !running.inside_product;
      places_[index].is_call = around == nullptr || trace_.events[around->event].name != event.name;
      running.inside_product = running.inside_product || event.flops > 0;
    }
    if (resolved) places_[index].within = running.within;
    stack.push_back(running);
  }

  void end_one(std::vector<Running>& stack, bool resolved) {
    const Running ended = stack.back();
    stack.pop_back();
    if (!resolved) return;
    const TraceEvent& event = trace_.events[ended.event];
    Place& place = places_[ended.event];
    const int64_t duration = std::max<int64_t>(ended.end_ns - event.begin_ns, 0);
    place.self_ns = std::max<int64_t>(duration - ended.inner_ns, 0);
    // What an operator moves is counted at the operators it calls, if they say so; products where
    // they are.
    place.counts_work = place.counts_work && event.bytes + event.flops > 0 &&
                        (event.flops > 0 || !ended.inner_counts);
    if (stack.empty()) return;
    stack.back().inner_ns += duration;
    stack.back().inner_counts |= place.counts_work || ended.inner_counts;
  }

  RangeOfBlock range_within(const RangeOfBlock& around, const TraceEvent& event) {
    if (roles_[event.name] != RangeRole::kPlain) return around;
    const std::string& name = name_of(event);
    const int32_t block = block_of(name);
    if (block >= 0) return {result_.ranges.child(RangeTree::kRoot, "layers.*"), block};
    return {result_.ranges.child(around.range, name), around.block};
  }

  RangeOfBlock range_of_node(const TraceEvent& event, const RangeOfBlock& otherwise) const {
    const auto thread = points_.find(event.forward_thread);
    if (thread == points_.end()) return otherwise;
    const auto after =
        std::ranges::upper_bound(thread->second, event.sequence, {}, &SequencePoint::sequence);
    return after == thread->second.begin() ? otherwise : std::prev(after)->within;
  }

  Pass pass_at(int64_t ns) const {
    const RangeTime* pass = range_at(result_.passes, ns);
    return pass != nullptr ? pass->pass : Pass::kOutside;
  }

  bool is_measured(int64_t ns) const {
    if (range_at(warmups_, ns)) return false;
    return result_.steps.empty() || result_.is_in_a_step(ns);
  }

  // What operators compute and move; on a CPU their time too, and that of ranges.
  void add_host_work() {
    if (!result_.on_gpu) result_.items.reserve(host_.size());
    for (const uint32_t index : host_) {
      const TraceEvent& event = trace_.events[index];
      const Place& place = places_[index];
      if (result_.on_gpu && !place.counts_work) continue;
      const RangeRole role = roles_[event.name];
      if (role == RangeRole::kWarmup || role == RangeRole::kEnd || !is_measured(event.begin_ns))
        continue;
      const Pass pass = pass_at(event.begin_ns);
      const WorkClass work_class = class_of(event);
      if (place.counts_work)
        result_.operators.push_back(
            {event.flops, event.bytes, place.within.range, pass, work_class});
      if (result_.on_gpu) continue;
      result_.items.push_back({event.begin_ns, event.end_ns, place.self_ns, index, place.within,
                               pass, work_class, place.is_call});
    }
  }

  void add_device_items() {
    using Numbered = std::vector<std::pair<uint64_t, uint32_t>>;
    Numbered by_id, by_correlation;
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const TraceEvent& event = trace_.events[i];
      if (event.kind == EventKind::kLaunch && event.correlation != 0) {
        by_correlation.emplace_back(event.correlation, i);
      } else if (!is_device_event(event) && event.kind != EventKind::kLaunch && event.id != 0) {
        by_id.emplace_back(event.id, i);
      }
    }
    std::ranges::sort(by_id);
    std::ranges::sort(by_correlation);
    const auto find = [](const Numbered& numbered, uint64_t number) -> std::optional<uint32_t> {
      const auto at = std::ranges::lower_bound(numbered, std::pair{number, 0u});
      if (number == 0 || at == numbered.end() || at->first != number) return std::nullopt;
      return at->second;
    };
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const TraceEvent& event = trace_.events[i];
      if (!is_device_event(event)) continue;
      const auto launcher = find(by_id, event.id);
      const auto launch = find(by_correlation, event.correlation);
      const int64_t asked_ns = launcher ? trace_.events[*launcher].begin_ns
                               : launch ? trace_.events[*launch].begin_ns
                                        : event.begin_ns;
      if (!is_measured(asked_ns)) continue;
      result_.items.push_back({event.begin_ns, event.end_ns, event.end_ns - event.begin_ns, i,
                               launcher ? places_[*launcher].within : RangeOfBlock{},
                               pass_at(asked_ns), class_of(event), /*is_call=*/true});
    }
  }

  WorkClass class_of(const TraceEvent& event) {
    auto& known = classes_[static_cast<size_t>(event.kind)];
    const auto [at, is_new] = known.try_emplace(event.name, WorkClass::kOther);
    if (is_new) {
      const std::string& name = name_of(event);
      at->second = is_device_event(event)               ? class_of_kernel(name)
                   : event.kind == EventKind::kOperator ? class_of_operator(name)
                                                        : class_of_range(name);
    }
    return at->second;
  }

  const TraceEvents& trace_;
  Attribution result_;
  std::vector<RangeRole> roles_;    // by name
  std::vector<RangeTime> warmups_;  // sorted
  std::vector<uint32_t> host_;      // operators and ranges, in the order of the sweep
  std::vector<Place> places_;       // by event
  std::unordered_map<uint32_t, std::vector<SequencePoint>> points_;  // by thread, in time order
  std::array<std::unordered_map<uint32_t, WorkClass>, 5> classes_;   // by kind and name
};

}  // namespace

const char* pass_name(Pass pass) {
  static constexpr std::array<const char*, kPasses> kNames = {"forward", "backward", "optimizer",
                                                              "outside"};
  return kNames[static_cast<size_t>(pass)];
}

int32_t block_of(const std::string& range_name) {
  constexpr std::string_view kPrefix = "layers.";
  constexpr uint32_t kMost = 9'999'999;  // times are kept for each number up to the largest
  if (!range_name.starts_with(kPrefix)) return -1;
  uint32_t number = 0;
  const char *first = range_name.data() + kPrefix.size(),
             *last = range_name.data() + range_name.size();
  const auto [end, error] = std::from_chars(first, last, number);
  return error == std::errc() && end == last && number <= kMost ? static_cast<int32_t>(number) : -1;
}

uint32_t RangeTree::child(uint32_t parent, const std::string& name) {
  const auto [at, is_new] = children_.try_emplace({parent, name}, size());
  if (is_new) nodes_.push_back({parent, name});
  return at->second;
}

std::vector<std::string> RangeTree::path(uint32_t node) const {
  std::vector<std::string> names;
  for (; node != kRoot; node = parent(node)) names.push_back(name(node));
  std::reverse(names.begin(), names.end());
  return names;
}

bool Attribution::is_in_a_step(int64_t ns) const { return range_at(steps, ns) != nullptr; }

Attribution attribute(const TraceEvents& trace) { return Attributor(trace).run(); }

}  // namespace flashstep::tools
