#include <algorithm>
#include <map>
#include <unordered_map>

#include "flashstep/error.h"
#include "flashstep/measure/memory_snapshot.h"
#include "flashstep/measure/pickle.h"

namespace flashstep::measure {
namespace {

enum class Action : uint8_t { kAlloc, kFree, kNeither };

// An event of a snapshot, as small as it goes: there are millions.
struct Entry {
  uint64_t address = 0;
  int64_t bytes = 0;
  int64_t microseconds = 0;
  PickleValue frames;
  Action action = Action::kNeither;
  MemoryKind kind = MemoryKind::kOther;
  bool has_kind = false;
};

Action action_by_name(std::string_view name) {
  if (name == "alloc") return Action::kAlloc;
  // memory_viz writes "free" for a request and its completion in one.
  return name == "free_completed" || name == "free" ? Action::kFree : Action::kNeither;
}

// Ours, and those of torch.profiler's memory timeline.
std::optional<MemoryKind> kind_by_name(std::string_view name) {
  static const std::map<std::string_view, MemoryKind> kinds = {
      {"parameter", MemoryKind::kParameters},
      {"gradient", MemoryKind::kGradients},
      {"activation", MemoryKind::kActivations},
      {"optimizer_state", MemoryKind::kOptimizerState},
      {"temporary", MemoryKind::kTemporaries},
      {"parameters", MemoryKind::kParameters},
      {"gradients", MemoryKind::kGradients},
      {"optimizer state", MemoryKind::kOptimizerState},
      {"activations", MemoryKind::kActivations},
      {"temporaries", MemoryKind::kTemporaries},
      {"communication", MemoryKind::kCommunication}};
  const auto found = kinds.find(name);
  if (found == kinds.end()) return std::nullopt;
  return found->second;
}

class SnapshotReader {
 public:
  SnapshotReader(std::string_view bytes, const std::string& source)
      : source_(source),
        pickle_(bytes, source, [this](const Pickle& pickle, const Pickle::Items& items) {
          return absorb(pickle, items);
        }) {}

  MemoryTrace read() {
    const PickleValue& traces = pickle_.at(pickle_.root(), "device_traces");
    const PickleValue& segments = pickle_.at(pickle_.root(), "segments");
    require(traces.type == PickleValue::Type::kList && segments.type == PickleValue::Type::kList,
            "[memory] ", source_,
            ": expected a memory snapshot, with segments and device_traces, got another pickle");
    const int64_t device = busiest(traces);
    if (device >= 0) read_events(pickle_.list(traces)[static_cast<size_t>(device)]);
    read_blocks(segments, std::max<int64_t>(device, 0));
    read_annotations();
    return std::move(trace_);
  }

 private:
  // Takes events out of the pickle while it is parsed: as dicts they would not fit into memory.
  std::optional<uint32_t> absorb(const Pickle& pickle, const Pickle::Items& items) {
    Entry entry;
    bool is_event = false;
    for (const auto& [key, value] : items) {
      const std::string_view name = pickle.text(key);
      if (name == "action") {
        is_event = true;
        entry.action = action_by_name(pickle.text(value));
      } else if (name == "addr") {
        entry.address = static_cast<uint64_t>(Pickle::integer(value));
      } else if (name == "size") {
        entry.bytes = Pickle::integer(value);
      } else if (name == "time_us") {
        entry.microseconds = Pickle::integer(value);
      } else if (name == "frames") {
        entry.frames = value;
      } else if (name == "category") {
        const auto kind = kind_by_name(pickle.text(value));
        entry.has_kind = kind.has_value();
        entry.kind = kind.value_or(MemoryKind::kOther);
      }
    }
    if (!is_event) return std::nullopt;
    entries_.push_back(entry);
    return static_cast<uint32_t>(entries_.size() - 1);
  }

  int64_t busiest(const PickleValue& traces) const {
    int64_t device = -1;
    size_t most = 0;
    const auto& lists = pickle_.list(traces);
    for (size_t i = 0; i < lists.size(); ++i) {
      const size_t events = pickle_.list(lists[i]).size();
      if (events <= most) continue;
      most = events;
      device = static_cast<int64_t>(i);
    }
    return device;
  }

  uint32_t frame(const PickleValue& value) {
    trace_.frames.push_back({std::string(pickle_.text(pickle_.at(value, "name"))),
                             std::string(pickle_.text(pickle_.at(value, "filename"))),
                             Pickle::integer(pickle_.at(value, "line"))});
    return static_cast<uint32_t>(trace_.frames.size() - 1);
  }

  uint32_t site(const PickleValue& frames) {
    if (frames.type != PickleValue::Type::kList || pickle_.list(frames).empty()) return 0;
    const auto [slot, is_new] =
        site_ids_.try_emplace(frames.index, static_cast<uint32_t>(trace_.sites.size()));
    if (!is_new) return slot->second;
    MemorySite site;
    for (const PickleValue& value : pickle_.list(frames)) {
      const std::string_view file = pickle_.text(pickle_.at(value, "filename"));
      const std::string_view name = pickle_.text(pickle_.at(value, "name"));
      if (file == "operator") {
        site.operators = name;
      } else if (file == "range") {
        site.ranges = name;
      } else if (value.type == PickleValue::Type::kDict) {
        const auto [known, first] = frame_ids_.try_emplace(value.index, 0);
        if (first) known->second = frame(value);
        site.frames.push_back(known->second);
      }
    }
    trace_.sites.push_back(std::move(site));
    return slot->second;
  }

  uint32_t allocation(const Entry& entry) {
    // Sums of them must fit into 64 bits, whatever the file says.
    constexpr int64_t kMostBytes = int64_t{1} << 62;
    require(entry.bytes >= 0 && entry.bytes <= kMostBytes - bytes_, "[memory] ", source_,
            ": expected the size of an allocation, got ", entry.bytes, " bytes");
    bytes_ += entry.bytes;
    Allocation allocation;
    allocation.address = entry.address;
    allocation.bytes = entry.bytes;
    allocation.site = site(entry.frames);
    allocation.kind = entry.kind;
    allocation.labelled = entry.has_kind;
    trace_.allocations.push_back(allocation);
    return static_cast<uint32_t>(trace_.allocations.size() - 1);
  }

  void read_events(const PickleValue& list) {
    bool timed = false;
    for (const PickleValue& value : pickle_.list(list)) {
      const auto record = pickle_.record(value);
      if (!record) continue;
      const Entry& entry = entries_[*record];
      if (entry.action == Action::kNeither) continue;
      if (trace_.events.empty()) start_ = entry.microseconds;
      timed = timed || entry.microseconds != start_;
      const auto event = static_cast<uint32_t>(trace_.events.size());
      const bool is_free = entry.action == Action::kFree;
      uint32_t index = 0;
      const auto found = live_.find(entry.address);
      if (!is_free || found == live_.end()) {
        index = allocation(entry);  // of a free that comes first: made before the history began
      } else {
        index = found->second;
      }
      Allocation& allocation = trace_.allocations[index];
      (is_free ? allocation.end : allocation.begin) = event;
      if (is_free) {
        live_.erase(entry.address);
      } else {
        live_[entry.address] = index;
      }
      // Clocks of several threads may differ by a microsecond: time never runs back.
      const double before = trace_.events.empty() ? 0 : trace_.events.back().seconds;
      trace_.events.push_back({std::max(before, seconds_at(entry.microseconds)), index, is_free});
    }
    trace_.timed = timed;
    if (timed) return;
    for (size_t i = 0; i < trace_.events.size(); ++i) {
      trace_.events[i].seconds = static_cast<double>(i);
    }
  }

  // What is alive at the end and was never seen to begin was there before.
  void read_blocks(const PickleValue& segments, int64_t device) {
    for (const PickleValue& segment : pickle_.list(segments)) {
      if (Pickle::integer(pickle_.at(segment, "device")) != device) continue;
      auto address = static_cast<uint64_t>(Pickle::integer(pickle_.at(segment, "address")));
      for (const PickleValue& block : pickle_.list(pickle_.at(segment, "blocks"))) {
        const int64_t size = Pickle::integer(pickle_.at(block, "size"));
        const bool is_active = pickle_.text(pickle_.at(block, "state")) == "active_allocated";
        if (is_active && live_.count(address) == 0) {
          Entry entry;
          entry.address = address;
          const int64_t requested = Pickle::integer(pickle_.at(block, "requested_size"));
          entry.bytes = requested > 0 ? requested : size;
          entry.frames = pickle_.at(block, "frames");
          allocation(entry);
        }
        address += static_cast<uint64_t>(size);
      }
    }
  }

  double seconds_at(int64_t microseconds) const {
    // Times of a damaged file may lie farther apart than a signed number can say.
    const auto since_start = static_cast<uint64_t>(microseconds) - static_cast<uint64_t>(start_);
    return static_cast<double>(static_cast<int64_t>(since_start)) * 1e-6;
  }

  uint32_t first_event_at(double seconds) const {
    const auto found =
        std::lower_bound(trace_.events.begin(), trace_.events.end(), seconds,
                         [](const MemoryEvent& event, double at) { return event.seconds < at; });
    return static_cast<uint32_t>(found - trace_.events.begin());
  }

  void read_annotations() {
    if (!trace_.timed) return;
    std::vector<size_t> open;
    for (const PickleValue& value :
         pickle_.list(pickle_.at(pickle_.root(), "external_annotations"))) {
      const double seconds = seconds_at(Pickle::integer(pickle_.at(value, "time_us")));
      const std::string_view stage = pickle_.text(pickle_.at(value, "stage"));
      if (stage == "START") {
        open.push_back(trace_.ranges.size());
        const uint32_t event = first_event_at(seconds);
        trace_.ranges.push_back({std::string(pickle_.text(pickle_.at(value, "name"))),
                                 {event, event},
                                 seconds,
                                 seconds});
      } else if (stage == "END" && !open.empty()) {
        MemoryRange& range = trace_.ranges[open.back()];
        open.pop_back();
        range.events.end = std::max(range.events.begin, first_event_at(seconds));
        range.end = seconds;
      }
    }
  }

  const std::string& source_;
  std::vector<Entry> entries_;  // before pickle_, whose parsing fills it
  Pickle pickle_;
  MemoryTrace trace_;
  int64_t start_ = 0;  // microseconds of the first event
  int64_t bytes_ = 0;  // of all allocations
  std::unordered_map<uint64_t, uint32_t> live_;
  std::unordered_map<uint64_t, uint32_t> site_ids_, frame_ids_;  // by list and by dict
};

}  // namespace

MemoryTrace read_snapshot(std::string_view bytes, const std::string& source) {
  return SnapshotReader(bytes, source).read();
}

}  // namespace flashstep::measure
