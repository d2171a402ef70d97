#include "flashstep/parallel/backend.h"

#include <algorithm>
#include <utility>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace flashstep {
namespace {

// What the current stream has been given by now, which reads and writes `tensors`.
class StreamWork : public c10d::Work {
 public:
  explicit StreamWork(std::vector<at::Tensor> tensors)
      : tensors_(std::move(tensors)),
        device_(tensors_.front().device()),
        stream_(current()),
        reached_(device_.type()) {
    reached_.record(stream_);
  }
  // Where nobody waited, their memory is not given to others before this is done.
  ~StreamWork() override {
    try {
      for (const at::Tensor& tensor : tensors_) tensor.record_stream(stream_);
    } catch (const c10::Error&) {  // of a device that is lost nobody gets memory
    }
  }
  StreamWork(const StreamWork&) = delete;
  StreamWork& operator=(const StreamWork&) = delete;

  bool isCompleted() override { return reached_.query(); }
  bool isSuccess() const override { return true; }
  // The current stream goes on when that is done.
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    reached_.block(current());
    tensors_.clear();
    return true;
  }

 private:
  c10::Stream current() const {
    return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  }

  std::vector<at::Tensor> tensors_;  // until somebody has waited
  at::Device device_;
  c10::Stream stream_;
  c10::Event reached_;
};

}  // namespace

bool goes_through_nccl(const std::vector<at::Tensor>& tensors, const Group& group) {
  const auto on_cuda = [](const at::Tensor& tensor) { return tensor.is_cuda(); };
  return group.world_size() > 1 && !tensors.empty() &&
         std::all_of(tensors.begin(), tensors.end(), on_cuda) &&
         group.process_group().getBackend(at::kCUDA)->getBackendName() == "nccl";
}

std::string transport_of(const std::vector<at::Tensor>& tensors, const Group& group) {
  if (group.world_size() == 1 || tensors.empty()) return "";
  const std::string name =
      group.process_group().getBackend(tensors.front().device().type())->getBackendName();
  return name == "nccl" ? "NCCL" : name == "gloo" ? "Gloo" : name;
}

c10::intrusive_ptr<c10d::Work> start_reduction(std::vector<at::Tensor>& tensors, bool average,
                                               const Group& group, const std::string& what,
                                               PeerMean* peers, std::optional<size_t> kept_at) {
  if (peers != nullptr && average && peers->takes(tensors)) {
    return group.guarded(what, [&]() -> c10::intrusive_ptr<c10d::Work> {
      auto work = std::exchange(tensors, peers->mean(tensors, kept_at));
      return c10::make_intrusive<StreamWork>(std::move(work));
    });
  }
  c10d::AllreduceCoalescedOptions options;
  options.reduceOp = average ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
  c10d::ProcessGroup& process_group = group.process_group();
  return group.guarded(what, [&] {
    return tensors.size() == 1 ? process_group.allreduce(tensors, options)
                               : process_group.allreduce_coalesced(tensors, options);
  });
}

}  // namespace flashstep
