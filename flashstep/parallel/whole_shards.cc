#include "flashstep/parallel/whole_shards.h"

#include "flashstep/error.h"
#include "flashstep/parallel/shards.h"

namespace flashstep {

using at::Tensor;

WholeShards::WholeShards(const Group& group, double part_bytes, bool peer_copies)
    : group_(group),
      part_bytes_(part_bytes),
      exchange_(group, peer_copies),
      loads_(group.world_size(), 0),
      bytes_(group.world_size(), 0) {}

std::vector<OwnPiece> WholeShards::divide(const std::vector<GroupedParameter>& parameters) {
  std::vector<int64_t> sizes;
  for (const auto& [tensor, group] : parameters) {
    require(tensor.is_non_overlapping_and_dense(),
            "[ShardedOptimizer] expected parameters that are dense in memory, got strides ",
            tensor.strides(), " for shape ", tensor.sizes());
    // A frozen parameter has an owner, in case it is unfrozen, but no state.
    sizes.push_back(tensor.requires_grad() ? tensor.numel() : 0);
  }
  const std::vector<int> ranks = assign_greedily(sizes, loads_);
  std::vector<OwnPiece> own;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [tensor, group] = parameters[i];
    const int rank = ranks[i];
    owners_[tensor.unsafeGetTensorImpl()] = rank;
    const auto part = static_cast<size_t>(bytes_[rank] / part_bytes_);
    if (part >= parts_.size()) parts_.resize(part + 1);
    parts_[part].tensors.push_back(tensor);
    parts_[part].owners.push_back(rank);
    bytes_[rank] += static_cast<double>(tensor.nbytes());
    if (rank == group_.rank()) own.push_back({tensor, 0, tensor.numel(), tensor, group, part});
  }
  return own;
}

int WholeShards::owner(const Tensor& parameter) const {
  const auto found = owners_.find(parameter.unsafeGetTensorImpl());
  return found == owners_.end() ? -1 : found->second;
}

// All gradients are on every rank.
std::vector<Tensor> WholeShards::gradients(const std::vector<OwnPiece>& /*own*/) {
  std::vector<Tensor> gradients;
  for (const Part& part : parts_) {
    for (const Tensor& tensor : part.tensors) {
      if (tensor.grad().defined()) gradients.push_back(tensor.grad());
    }
  }
  return gradients;
}

void WholeShards::send(size_t part) {
  std::vector<Tensor> tensors;
  std::vector<int> owners;
  for (size_t i = 0; i < parts_[part].tensors.size(); ++i) {
    if (!parts_[part].tensors[i].requires_grad()) continue;
    tensors.push_back(parts_[part].tensors[i]);
    owners.push_back(parts_[part].owners[i]);
  }
  exchange_.start(tensors, owners);
}

}  // namespace flashstep
