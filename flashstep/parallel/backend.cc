#include "flashstep/parallel/backend.h"

#include <algorithm>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace flashstep::parallel {

bool goes_through_nccl(const std::vector<at::Tensor>& tensors, const comm::Group& group) {
  const auto on_cuda = [](const at::Tensor& tensor) { return tensor.is_cuda(); };
  return group.world_size() > 1 && !tensors.empty() &&
         std::all_of(tensors.begin(), tensors.end(), on_cuda) &&
         group.process_group().getBackend(at::kCUDA)->getBackendName() == "nccl";
}

c10::intrusive_ptr<c10d::Work> start_sum(std::vector<at::Tensor>& tensors, bool average,
                                         const comm::Group& group, const std::string& what) {
  c10d::AllreduceCoalescedOptions options;
  options.reduceOp = average ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
  c10d::ProcessGroup& process_group = group.process_group();
  return group.guarded(what, [&] {
    return tensors.size() == 1 ? process_group.allreduce(tensors, options)
                               : process_group.allreduce_coalesced(tensors, options);
  });
}

}  // namespace flashstep::parallel
