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

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Entry {
  std::weak_ptr<DividingUnits> units;
  WeakTensor left;  // as a shard; while this lives no other tensor gets its address
  std::vector<int64_t> sizes;
};
struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, Entry> units;  // by TensorImpl
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

void note_divided(const Tensor& tensor, const std::weak_ptr<DividingUnits>& units) {
  const std::lock_guard lock(registry().mutex);
  registry().units.insert_or_assign(tensor.unsafeGetTensorImpl(),
                                    Entry{units, WeakTensor(Tensor().getIntrusivePtr()), {}});
}

void note_left_shard(const Tensor& tensor) {
  const std::lock_guard lock(registry().mutex);
  auto& entries = registry().units;
  std::erase_if(entries, [](const auto& item) {
    return item.second.units.expired() && item.second.left.expired();
  });
  const auto found = entries.find(tensor.unsafeGetTensorImpl());
  if (found != entries.end() && !found->second.units.expired()) return;  // others divide it
  entries.insert_or_assign(tensor.unsafeGetTensorImpl(),
                           Entry{{}, WeakTensor(tensor.getIntrusivePtr()), tensor.sizes().vec()});
}

void refuse_left_shard(const std::string& name, const Tensor& tensor, const char* who) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().units.find(tensor.unsafeGetTensorImpl());
  require(found == registry().units.end() || found->second.left.expired() ||
              tensor.sizes() != found->second.sizes,
          who, " expected parameters that are whole, got ", name, ", a shard that a ",
          "FullyShardedDataParallel has left when it ended: take gather_full_parameters() before ",
          "that, and give them to a module that was not wrapped");
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
    const auto units = found->second.units.lock();
    if (!units) continue;
    auto of_units = std::ranges::find(result, units, &DividedTensors::units);
    if (of_units == result.end()) of_units = result.insert(result.end(), {units, {}});
    of_units->tensors.push_back(tensor);
  }
  return result;
}

Tensor grad_norm_on(const at::Device& device, const std::vector<Tensor>& gradients) {
  // Made where it is used: a copy from the host waits for the GPU.
  if (gradients.empty()) return at::zeros({}, at::TensorOptions(device).dtype(at::kFloat));
  return grad_norm(gradients).to(device);
}

Tensor norm_of_gradients(const std::vector<Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  const std::vector<DividedTensors> divided = divided_tensors(parameters);
  std::unordered_set<const void*> seen;
  for (const DividedTensors& of_units : divided) {
    for (const Tensor& tensor : of_units.tensors) seen.insert(tensor.unsafeGetTensorImpl());
  }
  if (parameters.empty()) return at::zeros({}, at::kFloat);
  const at::Device device = parameters.front().device();
  std::vector<Tensor> whole;
  for (const Tensor& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) whole.push_back(parameter);
  }
  Tensor norm = grad_norm_on(device, gradients_of(whole));
  for (const auto& [units, tensors] : divided) {
    require(!units->updates_in_backward(),
            "[fully sharded] expected gradients to clip, got a backward that has used them: with "
            "an optimizer in backward no norm is known in time");
    const Tensor own = grad_norm_on(tensors.front().device(), gradients_of(tensors));
    const Tensor over_ranks = norm_over_ranks(own, units->shard_group()).to(device);
    norm = at::hypot(over_ranks, norm);
  }
  return norm;
}

Tensor on_any_rank(const Tensor& found, const std::vector<Tensor>& parameters) {
  Tensor any = found;
  for (const auto& [units, tensors] : divided_tensors(parameters)) {
    const Tensor own = any.to(tensors.front().device());
    any = norm_over_ranks(own, units->shard_group()).gt(0).to(found.device(), at::kFloat);
  }
  return any;
}

}  // namespace flashstep
