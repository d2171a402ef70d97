#include <algorithm>

#include <ATen/ATen.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/kinds.h"
#include "flashstep/ops/multi_tensor_kernels.h"

namespace flashstep {

at::Tensor grad_norm_reference(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  if (tensors.empty()) return at::zeros({}, at::kFloat);
  const at::Device device = tensors.front().device();
  const auto is_double = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kDouble;
  };
  // Squares of what float64 holds overflow in float32.
  const auto of_all =
      std::any_of(tensors.begin(), tensors.end(), is_double) ? at::kDouble : at::kFloat;
  std::vector<at::Tensor> norms;  // one per tensor
  for (const auto& [kind, of_kind] : internal::by_kind(tensors)) {
    // Half-precision tensors are summed in float32: their squares overflow in float16.
    const auto dtype = is_double(of_kind.front()) ? at::kDouble : at::kFloat;
    for (const at::Tensor& norm : at::_foreach_norm(of_kind, 2, dtype))
      norms.push_back(norm.to(device, of_all));
  }
  return at::stack(norms).norm().to(at::kFloat);
}

at::Tensor grad_norm(const std::vector<at::Tensor>& tensors) {
  const auto& kernels = internal::kCudaMultiTensor;
  const auto fits = [&](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && tensor.device() == tensors.front().device() &&
           kernels.takes(tensor.device(), tensor.scalar_type());
  };
  if (tensors.empty() || !std::all_of(tensors.begin(), tensors.end(), fits))
    return grad_norm_reference(tensors);
  const at::NoGradGuard no_grad;
  return kernels.grad_norm(tensors);
}

at::Tensor clip_factor(const at::Tensor& norm, double max_norm) {
  require(max_norm > 0, "[clip] expected a largest norm above 0, got ", max_norm);
  return (max_norm / (norm + 1e-6)).clamp_max(1.0);
}

void clip_to_norm(const std::vector<at::Tensor>& gradients, const at::Tensor& norm,
                  double max_norm) {
  const at::NoGradGuard no_grad;
  const at::Tensor factor = clip_factor(norm, max_norm);
  for (const auto& [kind, tensors] : internal::by_kind(gradients)) {
    const at::Tensor here = factor.to(tensors.front().device());
    if (tensors.front().element_size() >= 4) {
      at::_foreach_mul_(tensors, here);
      continue;
    }
    for (at::Tensor tensor : tensors) {  // a factor without dimensions would be rounded to 16 bits
      if (tensor.dim() == 0) tensor = tensor.view({1});
      tensor.mul_(here.view({1}));
    }
  }
}

}  // namespace flashstep
