#include <algorithm>
#include <cmath>
#include <vector>

#include "flashstep/measure/memory_snapshot.h"
#include "flashstep/measure/pickle.h"

namespace flashstep::measure {
namespace {

class SnapshotWriter {
 public:
  explicit SnapshotWriter(const MemoryTrace& trace) : trace_(trace) {}

  std::string write() {
    pickle_.begin_dict();
    pickle_.text("segments");
    write_segments();
    pickle_.text("device_traces");
    pickle_.begin_list();
    write_events();
    pickle_.end();
    pickle_.text("external_annotations");
    write_annotations();
    pickle_.text("allocator_settings");
    pickle_.begin_dict();
    pickle_.end();
    pickle_.end();
    return pickle_.take();
  }

 private:
  void field(const char* key, int64_t value) {
    pickle_.text(key);
    pickle_.integer(value);
  }
  void field(const char* key, std::string_view value) {
    pickle_.text(key);
    pickle_.text(value);
  }

  void frame(std::string_view function, std::string_view file, int64_t line) {
    pickle_.begin_dict();
    field("name", function);
    field("filename", file);
    field("line", line);
    pickle_.end();
  }

  // The frames of a site are written once, and referred to from then on.
  void frames(uint32_t index) {
    pickle_.text("frames");
    if (written_.empty()) written_.resize(trace_.sites.size());
    if (written_[index] > 0) return pickle_.repeat(written_[index] - 1);
    const MemorySite& site = trace_.sites[index];
    pickle_.begin_list();
    if (!site.operators.empty()) frame(site.operators, "operator", 0);
    if (!site.ranges.empty()) frame(site.ranges, "range", 0);
    for (const uint32_t i : site.frames) {
      const MemoryFrame& f = trace_.frames[i];
      frame(f.function, f.file, f.line);
    }
    pickle_.end();
    written_[index] = pickle_.remember() + 1;
  }

  void write_events() {
    pickle_.begin_list();
    for (const MemoryEvent& event : trace_.events) {
      if (event.is_free) {
        write_event(event, "free_requested");
        write_event(event, "free_completed");
      } else {
        write_event(event, "alloc");
      }
    }
    // memory_viz wants a category "unknown" wherever there are categories, for what has none.
    pickle_.begin_dict();
    field("action", "snapshot");
    field("addr", int64_t{0});
    field("size", int64_t{0});
    field("stream", int64_t{0});
    field("time_us", trace_.events.empty() ? 0 : microseconds(trace_.events.back().seconds));
    field("category", "unknown");
    pickle_.end();
    pickle_.end();
  }

  static int64_t microseconds(double seconds) { return std::llround(seconds * 1e6); }

  void write_event(const MemoryEvent& event, const char* action) {
    const Allocation& allocation = trace_.allocations[event.allocation];
    pickle_.begin_dict();
    field("action", action);
    field("addr", static_cast<int64_t>(allocation.address));
    field("size", allocation.bytes);
    field("stream", int64_t{0});
    field("time_us", microseconds(event.seconds));
    field("category", name_of(allocation.kind));
    frames(allocation.site);
    pickle_.end();
  }

  void block(uint64_t address, int64_t bytes, const Allocation* allocation) {
    pickle_.begin_dict();
    field("address", static_cast<int64_t>(address));
    field("size", bytes);
    field("requested_size", allocation != nullptr ? bytes : 0);
    field("state", allocation != nullptr ? "active_allocated" : "inactive");
    if (allocation != nullptr) {
      frames(allocation->site);
    } else {
      pickle_.text("frames");
      pickle_.begin_list();
      pickle_.end();
    }
    pickle_.end();
  }

  // Where a reader places blocks: [begin, end) of addresses that were in use at any time.
  struct Segment {
    uint64_t begin, end;
  };

  std::vector<Segment> segments() const {
    std::vector<Segment> spans;
    for (const Allocation& a : trace_.allocations) {
      spans.push_back({a.address, a.address + static_cast<uint64_t>(a.bytes)});
    }
    std::sort(spans.begin(), spans.end(),
              [](const Segment& a, const Segment& b) { return a.begin < b.begin; });
    std::vector<Segment> joined;
    for (const Segment& span : spans) {
      if (!joined.empty() && span.begin <= joined.back().end) {
        joined.back().end = std::max(joined.back().end, span.end);
      } else {
        joined.push_back(span);
      }
    }
    return joined;
  }

  void write_segments() {
    std::vector<const Allocation*> alive;
    for (const Allocation& a : trace_.allocations) {
      if (a.end == kNoEvent) alive.push_back(&a);
    }
    std::sort(alive.begin(), alive.end(),
              [](const Allocation* a, const Allocation* b) { return a->address < b->address; });
    pickle_.begin_list();
    auto next = alive.begin();
    for (const Segment& segment : segments()) {
      const auto first = next;
      while (next != alive.end() && (*next)->address < segment.end) ++next;
      write_segment(segment, {first, next});
    }
    pickle_.end();
  }

  void write_segment(const Segment& segment, const std::vector<const Allocation*>& alive) {
    int64_t active = 0;
    for (const Allocation* a : alive) active += a->bytes;
    pickle_.begin_dict();
    field("device", int64_t{0});
    field("address", static_cast<int64_t>(segment.begin));
    field("total_size", static_cast<int64_t>(segment.end - segment.begin));
    field("allocated_size", active);
    field("active_size", active);
    field("requested_size", active);
    field("stream", int64_t{0});
    field("segment_type", "large");
    pickle_.text("segment_pool_id");
    pickle_.begin_list();
    pickle_.integer(0);
    pickle_.integer(0);
    pickle_.end();
    pickle_.text("is_expandable");
    pickle_.boolean(false);
    pickle_.text("frames");
    pickle_.begin_list();
    pickle_.end();
    pickle_.text("blocks");
    pickle_.begin_list();
    uint64_t address = segment.begin;
    for (const Allocation* a : alive) {
      if (a->address > address) block(address, static_cast<int64_t>(a->address - address), nullptr);
      block(a->address, a->bytes, a);
      address = a->address + static_cast<uint64_t>(a->bytes);
    }
    if (address < segment.end) block(address, static_cast<int64_t>(segment.end - address), nullptr);
    pickle_.end();
    pickle_.end();
  }

  void annotation(const MemoryRange& range, const char* stage, double seconds) {
    pickle_.begin_dict();
    field("name", range.path);
    field("stage", stage);
    field("device", int64_t{0});
    field("time_us", microseconds(seconds));
    pickle_.end();
  }

  void write_annotations() {
    pickle_.begin_list();
    for (const MemoryRange& range : trace_.ranges) {
      annotation(range, "START", range.begin);
      annotation(range, "END", range.end);
    }
    pickle_.end();
  }

  const MemoryTrace& trace_;
  PickleWriter pickle_;
  std::vector<uint32_t> written_;  // by site: 1 + where its frames are remembered, or 0
};

}  // namespace

std::string to_snapshot(const MemoryTrace& trace) { return SnapshotWriter(trace).write(); }

}  // namespace flashstep::measure
