#include "flashstep/measure/profiler_ranges.h"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/profiler/stubs/base.h>

namespace flashstep::measure {
namespace {

// Open on this thread, innermost last.
std::vector<std::unique_ptr<at::RecordFunction>>& open_ranges() {
  thread_local std::vector<std::unique_ptr<at::RecordFunction>> ranges;
  return ranges;
}

using Nvtx = torch::profiler::impl::ProfilerStubs;

// Null where LibTorch has no CUDA.
const Nvtx* nvtx() {
  static const Nvtx* const stubs = torch::profiler::impl::cudaStubs();
  return stubs->enabled() ? stubs : nullptr;
}

// A node of the backward pass: on a GPU they run on a thread of their own, on which none of the
// program's ranges is open.
std::unique_ptr<at::ObserverContext> begin_node(const at::RecordFunction& node) {
  nvtx()->rangePush(node.name());
  return nullptr;
}
void end_node(const at::RecordFunction&, at::ObserverContext*) { nvtx()->rangePop(); }

class ProfilerListener final : public RangeListener {
 public:
  void begin_range(const char* name) override {
    if (nvtx() != nullptr) nvtx()->rangePush(name);
    auto annotation = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
    if (annotation->isActive()) {
      annotation->before(name, static_cast<int64_t>(at::sequence_number::peek()));
    }
    open_ranges().push_back(std::move(annotation));
  }

  void end_range() override {
    open_ranges().pop_back();
    // Nodes from here on belong to the range around it, also those that no operator announces.
    at::RecordFunction mark(at::RecordScope::USER_SCOPE);
    if (mark.isActive()) mark.before(kRangeEnd, static_cast<int64_t>(at::sequence_number::peek()));
    if (nvtx() != nullptr) nvtx()->rangePop();
  }
};

}  // namespace

RangeListener& profiler_listener() {
  static ProfilerListener instance;
  return instance;
}

ProfilerRanges::ProfilerRanges() {
  listen_to_ranges(&profiler_listener());
  if (nvtx() == nullptr) return;
  node_callback_ = at::addGlobalCallback(at::RecordFunctionCallback(begin_node, end_node)
                                             .scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

ProfilerRanges::~ProfilerRanges() {
  listen_to_ranges(nullptr);
  if (node_callback_) at::removeCallback(*node_callback_);
}

}  // namespace flashstep::measure
