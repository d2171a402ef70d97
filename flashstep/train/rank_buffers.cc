#include "flashstep/train/rank_buffers.h"

#include <ATen/ATen.h>

#include "flashstep/base/hash.h"
#include "flashstep/parallel/named_tensors.h"
#include "flashstep/train/module_tensors.h"

namespace flashstep {
namespace {

// A line that two buffers share if their names and bits are the same.
std::string line_of(const std::string& name, const torch::Tensor& buffer) {
  const torch::Tensor bits = buffer.detach().cpu().contiguous();
  return str('\n', name, ' ',
             hash_bytes({static_cast<const char*>(bits.const_data_ptr()), bits.nbytes()}), '\n');
}

}  // namespace

NamedTensors rank_buffers(const Job& job) {
  const Group* const group = job.parallel->group();
  if (group == nullptr) return {};
  std::string of_first;
  const auto buffers = job.module.named_buffers();
  if (group->is_first()) {
    for (const auto& item : buffers) {
      if (item.value().defined()) of_first += line_of(item.key(), item.value());
    }
  }
  of_first = group->broadcast(of_first);
  NamedTensors others;
  for (const auto& item : buffers) {
    const torch::Tensor& buffer = item.value();
    if (!buffer.defined() || of_first.find(line_of(item.key(), buffer)) != of_first.npos) continue;
    others.emplace_back(flashstep::str(kRankBuffers, group->rank(), '/', item.key()), buffer);
  }
  return gather_tensors(others, *group);
}

void load_rank_buffers(const Job& job, const StoredTensors& written) {
  const torch::NoGradGuard no_grad;
  const auto buffers = job.module.named_buffers();
  const std::string own = flashstep::str(kRankBuffers, job.parallel->rank(), '/');
  for (const StoredTensor& stored : written) {
    const torch::Tensor value = stored.whole();
    if (!stored.name.starts_with(own)) continue;
    if (const torch::Tensor* const buffer = buffers.find(stored.name.substr(own.size())))
      set_value(*buffer, value);
  }
}

}  // namespace flashstep
