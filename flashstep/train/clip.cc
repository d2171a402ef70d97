#include "flashstep/train/clip.h"

#include <unordered_set>

#include <ATen/ATen.h>

#include "flashstep/ops/grad_norm.h"
#include "flashstep/ops/kinds.h"

namespace flashstep::train {

using torch::Tensor;

Tensor global_norm(const std::vector<Tensor>& gradients) { return grad_norm(gradients); }

void clip_to_norm(const std::vector<Tensor>& gradients, const Tensor& norm, double max_norm) {
  torch::NoGradGuard no_grad;
  const Tensor factor = clip_factor(norm, max_norm);
  for (const auto& [kind, tensors] : internal::by_kind(gradients)) {
    at::_foreach_mul_(tensors, factor.to(tensors.front().device()));
  }
}

std::vector<Tensor> gradients_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> gradients;
  std::unordered_set<void*> seen;
  for (const Tensor& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) gradients.push_back(parameter.grad());
  }
  return gradients;
}

}  // namespace flashstep::train
