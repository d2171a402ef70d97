#include "flashstep/profiling.h"

namespace flashstep {

void ScopedRange::begin(const char* name) {
  std::atomic_thread_fence(std::memory_order_acquire);  // see what listen_to_ranges() published
  listener_->begin_range(name);
}

}  // namespace flashstep
