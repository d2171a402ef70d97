#include "flashstep/train/module_tensors.h"

#include <set>
#include <unordered_map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/utils.h>

#include "flashstep/error.h"
#include "flashstep/sharded_units.h"

namespace flashstep {

using torch::Tensor;

NamedTensors module_tensors(const torch::nn::Module& module) {
  NamedTensors tensors;
  std::set<void*> seen;
  const auto add = [&](const auto& named) {
    for (const auto& item : named) {
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
        tensors.emplace_back(item.key(), item.value());
      }
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return tensors;
}

NamedTensors whole_tensors(const torch::nn::Module& module, const Parallelism& parallel) {
  NamedTensors tensors = module_tensors(module);
  if (parallel.units() == nullptr) return tensors;
  std::unordered_map<std::string, Tensor> wholes;
  for (const Shard& shard : parallel.units()->shards()) wholes.emplace(shard.name, shard.whole);
  for (auto& [name, tensor] : tensors) {
    const auto found = wholes.find(name);
    if (found != wholes.end()) tensor = found->second;
  }
  return tensors;
}

void set_value(Tensor tensor, const Tensor& value) {
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
    return tensor.set_data(value.to(tensor.options(), /*non_blocking=*/false, /*copy=*/true));
  tensor.copy_(value);
}

void check_weights(const NamedTensors& own, const StoredTensors& weights,
                   const std::string& source) {
  std::unordered_map<std::string, Tensor> by_name;
  for (const StoredTensor& stored : weights) by_name.emplace(stored.name, stored.form);
  std::set<std::string> known;
  for (const auto& [name, tensor] : own) {
    known.insert(name);
    const auto found = by_name.find(name);
    require_tensor(name, found != by_name.end(), "[weights] expected ", name, " in ", source,
                   ", but it is not there");
    require_tensor(name, found->second.sizes() == tensor.sizes(), "[weights] expected ", name,
                   " of shape ", tensor.sizes(), " in ", source, ", got ", found->second.sizes());
    const Tensor& stored = found->second;
    require_tensor(name,
                   stored.scalar_type() == tensor.scalar_type() ||
                       (stored.is_floating_point() && tensor.is_floating_point()),
                   "[weights] expected ", name, " of ", tensor.scalar_type(), " in ", source,
                   ", got ", stored.scalar_type());
  }
  for (const StoredTensor& stored : weights) {
    require_tensor(stored.name, known.contains(stored.name), "[weights] ", source, " holds ",
                   stored.name, ", which the module does not have");
  }
}

void load_module(torch::nn::Module& module, const StoredTensors& weights,
                 const std::string& source) {
  load_module(module, Parallelism(), weights, source);
}

void load_module(torch::nn::Module& module, const Parallelism& parallel,
                 const StoredTensors& weights, const std::string& source) {
  const torch::NoGradGuard no_grad;
  check_weights(whole_tensors(module, parallel), weights, source);
  std::unordered_map<std::string, const StoredTensor*> by_name;
  for (const StoredTensor& stored : weights) by_name[stored.name] = &stored;
  if (ShardedUnits* const units = parallel.units()) {
    units->load_parts([&](const Shard& shard) {
      const StoredTensor& stored = *std::exchange(by_name.at(shard.name), nullptr);
      return part_of(stored, shard.whole, shard.begin, shard.end);
    });
  }
  for (auto [name, tensor] : module_tensors(module)) {  // what is left
    if (const StoredTensor* const stored = by_name.at(name)) set_value(tensor, stored->whole());
  }
}

}  // namespace flashstep
