#include "flashstep/train/clip.h"

#include <map>
#include <string>
#include <unordered_set>

#include <ATen/ATen.h>

#include "flashstep/base/error.h"

namespace flashstep::train {
namespace {

using torch::Tensor;

// foreach kernels take tensors of one device and dtype.
std::map<std::string, std::vector<Tensor>> by_kind(const std::vector<Tensor>& tensors) {
  std::map<std::string, std::vector<Tensor>> kinds;
  for (const Tensor& tensor : tensors) {
    kinds[flashstep::str(tensor.device(), ' ', c10::toString(tensor.scalar_type()))].push_back(
        tensor);
  }
  return kinds;
}

}  // namespace

Tensor global_norm(const std::vector<Tensor>& gradients) {
  torch::NoGradGuard no_grad;
  if (gradients.empty()) return at::zeros({}, at::kFloat);
  const torch::Device device = gradients.front().device();
  std::vector<Tensor> norms;  // float32, one per tensor
  for (const auto& [kind, tensors] : by_kind(gradients)) {
    // Half-precision tensors are summed in float32: their squares overflow in float16.
    for (const Tensor& norm : at::_foreach_norm(tensors, 2, at::kFloat))
      norms.push_back(norm.to(device));
  }
  return at::stack(norms).norm();
}

void clip_to_norm(const std::vector<Tensor>& gradients, const Tensor& norm, double max_norm) {
  require(max_norm > 0, "[clip] expected a largest norm above 0, got ", max_norm);
  torch::NoGradGuard no_grad;
  const Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  for (const auto& [kind, tensors] : by_kind(gradients)) {
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
