#include "flashstep/report/profiler_ranges.h"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/profiler/stubs/base.h>

namespace flashstep::report {
namespace {

// Open on this thread, innermost last.
std::vector<std::unique_ptr<at::RecordFunction>>& open_ranges() {
  thread_local std::vector<std::unique_ptr<at::RecordFunction>> ranges;
  return ranges;
}

class Listener : public measure::RangeListener {
 public:
  Listener() : nvtx_(torch::profiler::impl::cudaStubs()) {
    if (!nvtx_->enabled()) nvtx_ = nullptr;
  }

  void begin_range(const char* name) override {
    if (nvtx_ != nullptr) nvtx_->rangePush(name);
    auto annotation = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
    if (annotation->isActive()) {
      annotation->before(name, static_cast<int64_t>(at::sequence_number::peek()));
    }
    open_ranges().push_back(std::move(annotation));
  }

  void end_range() override {
    open_ranges().pop_back();
    if (nvtx_ != nullptr) nvtx_->rangePop();
  }

 private:
  const torch::profiler::impl::ProfilerStubs* nvtx_;
};

// Lives as long as the process: a range may end after the last ProfilerRanges.
Listener& listener() {
  static Listener instance;
  return instance;
}

}  // namespace

ProfilerRanges::ProfilerRanges() { measure::listen_to_ranges(&listener()); }
ProfilerRanges::~ProfilerRanges() { measure::listen_to_ranges(nullptr); }

}  // namespace flashstep::report
