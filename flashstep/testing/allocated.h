// How many bytes of tensors LibTorch's CPU allocator gives out on this thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace flashstep::testing {

// From its making on; tensors that were there before and go away are not counted.
class Allocated {
 public:
  int64_t bytes() const { return report_->now; }
  int64_t peak_bytes() const { return report_->peak; }

 private:
  struct Report : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t change, size_t, size_t, c10::Device) override {
      now += change;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t now = 0, peak = 0;
  };
  std::shared_ptr<Report> report_ = std::make_shared<Report>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, report_};
};

}  // namespace flashstep::testing
