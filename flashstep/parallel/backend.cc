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

}  // namespace flashstep::parallel
