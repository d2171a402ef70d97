#include "flashstep/parallel/named_tensors.h"

#include <algorithm>
#include <sstream>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "flashstep/error.h"

namespace flashstep {
namespace {

using at::Tensor;

constexpr const char* kBringingTensors = "bringing tensors to one rank";
// Beside which a message's start costs nothing, and which every host has.
constexpr int64_t kMostBytesAtOnce = 16 << 20;

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

NamedTensors empty_as(const std::string& description, at::Device device) {
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
    tensors.emplace_back(
        name, at::empty(sizes, at::TensorOptions(device).dtype(static_cast<at::ScalarType>(type))));
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
      for (const auto& [name, tensor] : empty_as(descriptions[rank], at::kCPU)) {
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

StoredTensors stored_on_first_rank(StoredTensors tensors, const Group& group) {
  NamedTensors forms;
  for (const StoredTensor& tensor : tensors) forms.emplace_back(tensor.name, tensor.form);
  const std::string description = group.broadcast(group.is_first() ? describe(forms) : "");
  if (!group.is_first()) {
    tensors.clear();
    for (const auto& [name, form] : empty_as(description, at::kMeta))
      tensors.push_back({name, form, nullptr});
  }
  for (StoredTensor& tensor : tensors) {
    tensor.read = [&group, form = tensor.form, read_first = tensor.read](int64_t begin,
                                                                         int64_t end) {
      const auto options = form.options().device(at::kCPU);
      const Tensor own = at::empty({end - begin}, options);
      const auto step = kMostBytesAtOnce / static_cast<int64_t>(form.element_size());
      for (int64_t at = 0; at < form.numel(); at += step) {
        const int64_t to = std::min(at + step, form.numel());
        const Tensor part =
            group.is_first() ? read_first(at, to).cpu() : at::empty({to - at}, options);
        group.broadcast(part.view(at::kByte));  // Gloo does not know all types
        const int64_t first = std::max(at, begin), last = std::min(to, end);
        if (first >= last) continue;
        own.slice(0, first - begin, last - begin).copy_(part.slice(0, first - at, last - at));
      }
      return own;
    };
  }
  return tensors;
}

}  // namespace flashstep
