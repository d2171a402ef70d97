#include "flashstep/parallel/unit_gradients.h"

#include <ATen/ATen.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/parallel/divided_tensors.h"
#include "flashstep/sharded_optimizer.h"

namespace flashstep {

using at::Tensor;

Tensor UnitGradients::norm() const {
  const at::NoGradGuard no_grad;
  const Tensor divided = norm_over_ranks(own_norm(true), group_);
  return at::hypot(divided, own_norm(false));
}

Tensor UnitGradients::clip(double max_norm) {
  require(!update_, "[fully sharded] expected gradients to clip, got a backward that has used ",
          "them: with an optimizer in backward no norm is known in time");
  const Tensor before = norm();
  clip_to_norm(gradients(true), before, max_norm);
  clip_to_norm(gradients(false), before, max_norm);
  return before;
}

void UnitGradients::update_in_backward(std::function<void(const Tensor& not_finite)> update) {
  update_ = std::move(update);
  dropped_ = {};
}

void UnitGradients::use(size_t unit) {
  for (const bool divided : {true, false}) use(unit, divided);
}

// The unit's tensors that are divided, or those that are not. Others are out of sight meanwhile:
// those that are still collected are of whole tensors.
void UnitGradients::use(size_t unit, bool divided) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<Tensor, Tensor>> hidden;
  std::vector<Tensor> used, gradients;
  for (ShardedUnit& other : units_) {
    for (ShardedTensor& t : other.tensors()) {
      if (!t.tensor.grad().defined()) continue;
      if (&other == &units_[unit] && t.is_divided == divided) {
        used.push_back(t.tensor);
        gradients.push_back(t.tensor.grad());
      } else {
        hidden.emplace_back(t.tensor, std::exchange(t.tensor.mutable_grad(), {}));
      }
    }
  }
  if (!used.empty()) {
    const Tensor of_unit = grad_norm(gradients);
    Tensor& square = dropped_[divided];
    square = square.defined() ? square + of_unit.square() : of_unit.square();
    update_(of_unit.isfinite().logical_not().to(at::kFloat));
  }
  for (const Tensor& tensor : used) tensor.mutable_grad().reset();
  for (const auto& [tensor, gradient] : hidden) tensor.mutable_grad() = gradient;
}

void UnitGradients::hand_over(const SideStream& stream) const {
  for (const Tensor& square : dropped_) {
    if (square.defined()) stream.hand_over(square);
  }
}

Tensor UnitGradients::own_norm(bool divided) const {
  const Tensor& dropped = dropped_[divided];
  return dropped.defined() ? dropped.sqrt().to(device_) : grad_norm_on(device_, gradients(divided));
}

std::vector<Tensor> UnitGradients::gradients(bool divided) const {
  std::vector<Tensor> result;
  for (const ShardedUnit& unit : units_) {
    for (const ShardedTensor& t : unit.tensors()) {
      if (t.is_divided == divided && t.tensor.grad().defined()) result.push_back(t.tensor.grad());
    }
  }
  return result;
}

}  // namespace flashstep
