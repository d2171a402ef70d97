#include "flashstep/parallel/named_tensors.h"

#include <sstream>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "flashstep/error.h"

namespace flashstep {
namespace {

using at::Tensor;

constexpr const char* kBringingTensors = "bringing tensors to one rank";

// Of each tensor type, number of axes, sizes, length of the name, and the name.
std::string describe(const NamedTensors& tensors) {
  std::ostringstream text;
  for (const auto& [name, tensor] : tensors) {
    text << static_cast<int>(tensor.scalar_type()) << ' ' << tensor.dim() << ' ';
    for (const int64_t size : tensor.sizes()) text << size << ' ';
    text << name.size() << ' ' << name;
  }
  return text.str();
}

NamedTensors empty_as(const std::string& description) {
  NamedTensors tensors;
  std::istringstream text(description);
  int type = 0;
  size_t dim = 0, length = 0;
  while (text >> type >> dim) {
    std::vector<int64_t> sizes(dim);
    for (int64_t& size : sizes) text >> size;
    text >> length;
    text.get();  // the space before the name
    std::string name(length, '\0');
    text.read(name.data(), static_cast<std::streamsize>(length));
    tensors.emplace_back(name, at::empty(sizes, static_cast<at::ScalarType>(type)));
  }
  return tensors;
}

}  // namespace

NamedTensors gather_tensors(const NamedTensors& own, const Group& group, int to) {
  const std::vector<std::string> descriptions = group.all_gather(describe(own));
  NamedTensors all;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (rank == group.rank()) {
      for (const auto& [name, tensor] : own) {
        const Tensor here = tensor.detach().cpu().contiguous();
        if (group.rank() != to && here.numel() == 0) continue;
        if (group.rank() == to) {
          all.emplace_back(name, here);
          continue;
        }
        std::vector<Tensor> message = {here};
        group.wait(group.guarded(kBringingTensors,
                                 [&] { return group.process_group().send(message, to, 0); }),
                   kBringingTensors);
      }
    } else if (group.rank() == to) {
      for (const auto& [name, tensor] : empty_as(descriptions[rank])) {
        all.emplace_back(name, tensor);
        if (tensor.numel() == 0) continue;
        std::vector<Tensor> message = {tensor};
        group.wait(group.guarded(kBringingTensors,
                                 [&] { return group.process_group().recv(message, rank, 0); }),
                   kBringingTensors);
      }
    }
  }
  return all;
}

void broadcast_tensors(NamedTensors& tensors, const Group& group) {
  const std::string description = group.broadcast(group.is_first() ? describe(tensors) : "");
  if (!group.is_first()) tensors = empty_as(description);
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.cpu().contiguous();
    group.broadcast(tensor);
  }
}

}  // namespace flashstep
