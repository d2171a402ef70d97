#include "flashstep/parallel/divided_tensors.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include <ATen/ATen.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/sharded_optimizer.h"

namespace flashstep {
namespace {

using at::Tensor;

struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, std::weak_ptr<ShardedUnits>> units;  // by TensorImpl
};
Registry& registry() {
  static Registry instance;
  return instance;
}

std::vector<Tensor> gradients_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

}  // namespace

void note_divided(const Tensor& tensor, const std::weak_ptr<ShardedUnits>& units) {
  const std::lock_guard lock(registry().mutex);
  registry().units[tensor.unsafeGetTensorImpl()] = units;
}

void forget_divided(const Tensor& tensor) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().units.find(tensor.unsafeGetTensorImpl());
  if (found != registry().units.end() && found->second.expired()) registry().units.erase(found);
}

std::vector<DividedTensors> divided_tensors(const std::vector<Tensor>& tensors) {
  std::vector<DividedTensors> result;
  const std::lock_guard lock(registry().mutex);
  if (registry().units.empty()) return result;
  std::unordered_set<const void*> seen;
  for (const Tensor& tensor : tensors) {
    const void* const identity = tensor.unsafeGetTensorImpl();
    const auto found = registry().units.find(identity);
    if (found == registry().units.end() || !seen.insert(identity).second) continue;
    const auto units = found->second.lock();
    if (!units) continue;
    auto of_units = std::ranges::find(result, units, &DividedTensors::units);
    if (of_units == result.end()) of_units = result.insert(result.end(), {units, {}});
    of_units->tensors.push_back(tensor);
  }
  return result;
}

Tensor norm_of_gradients(const std::vector<Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  const std::vector<DividedTensors> divided = divided_tensors(parameters);
  std::unordered_set<const void*> seen;
  for (const DividedTensors& of_units : divided) {
    for (const Tensor& tensor : of_units.tensors) seen.insert(tensor.unsafeGetTensorImpl());
  }
  std::vector<Tensor> whole;
  for (const Tensor& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) whole.push_back(parameter);
  }
  Tensor norm = grad_norm(gradients_of(whole));
  for (const auto& [units, tensors] : divided) {
    require(!units->updates_in_backward(),
            "[fully sharded] expected gradients to clip, got a backward that has used them: with "
            "an optimizer in backward no norm is known in time");
    const at::Device device = tensors.front().device();
    const Tensor own = grad_norm(gradients_of(tensors)).to(device);
    const Tensor over_ranks = norm_over_ranks(own, units->shard_group());
    norm = (over_ranks.square() + norm.to(device).square()).sqrt();
  }
  return norm;
}

Tensor norm_over_shards(const Tensor& own, const std::vector<Tensor>& parameters) {
  Tensor norm = own;
  for (const auto& [units, tensors] : divided_tensors(parameters))
    norm = norm_over_ranks(norm.to(tensors.front().device()), units->shard_group());
  return norm.to(own.device());
}

}  // namespace flashstep
