// Named, nested stretches of a program's time, for whoever records them (a profiler, NVTX). When
// nobody listens a range costs one relaxed load and a branch.
#pragma once

#include <atomic>

namespace flashstep {

class RangeListener {
 public:
  virtual ~RangeListener() = default;
  // Called on the thread that the range lives on; `name` lives at least as long as the range.
  virtual void begin_range(const char* name) = 0;
  virtual void end_range() = 0;
};

namespace internal {
inline std::atomic<RangeListener*> range_listener{nullptr};
}

// From now on `listener` (nullptr: nobody) hears of the ranges that begin. It must outlive them.
inline void listen_to_ranges(RangeListener* listener) {
  internal::range_listener.store(listener, std::memory_order_release);
}

// A range from here to the end of the scope: ScopedRange range("forward");
class ScopedRange {
 public:
  explicit ScopedRange(const char* name)
      : listener_(internal::range_listener.load(std::memory_order_relaxed)) {
    if (listener_ != nullptr) begin(name);
  }
  ~ScopedRange() {
    if (listener_ != nullptr) listener_->end_range();
  }
  ScopedRange(const ScopedRange&) = delete;
  ScopedRange& operator=(const ScopedRange&) = delete;

 private:
  void begin(const char* name);

  RangeListener* listener_;  // whoever heard the begin also hears the end
};

}  // namespace flashstep
