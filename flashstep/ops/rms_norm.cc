#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/cuda_kernels.h"
#include "flashstep/ops/differentiable_once.h"
#include "flashstep/ops/element.h"
#include "flashstep/ops/passes.h"

namespace flashstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows whose weight gradients are summed into one partial sum: fixed, so that the order of
// additions, and with it every bit of the result, does not depend on the number of threads.
constexpr int64_t kRowsPerPartial = 64;

// Saves x, the float32 weight and rstd (rows), not xhat: one pass over x recomputes it.
class FusedRmsNorm : public torch::autograd::Function<FusedRmsNorm> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_any,
                            const at::Tensor& weight, double epsilon, at::ScalarType dtype) {
    const auto x = x_any.contiguous();
    const auto weight32 = weight.to(at::kFloat).contiguous();
    const auto [y, rstd] = internal::rms_norm_forward(x, weight32, epsilon, dtype);
    context->save_for_backward({x, weight32, rstd});
    context->saved_data["weight_dtype"] = static_cast<int64_t>(weight.scalar_type());
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    internal::refuse_create_graph("rms_norm");
    const auto saved = context->get_saved_variables();
    const auto weight_dtype =
        static_cast<at::ScalarType>(context->saved_data["weight_dtype"].toInt());
    const auto [dx, dweight] =
        internal::rms_norm_backward(gradients[0], saved[0], saved[1], saved[2]);
    return {dx, dweight.to(weight_dtype), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

namespace internal {

bool has_pass(const at::Tensor& x) { return has_cpu_kernel(x) || has_cuda_kernel(x); }

bool has_rms_norm_pass(const at::Tensor& x, const at::Tensor& weight, at::ScalarType dtype) {
  const bool on_cpu =
      has_cpu_kernel(x) && weight.is_cpu() && (dtype == at::kFloat || dtype == at::kBFloat16);
  const bool on_gpu = has_cuda_kernel(x) && weight.device() == x.device() &&
                      (x.scalar_type() == at::kFloat || x.scalar_type() == dtype);
  return on_cpu || on_gpu;
}

std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x_any,
                                                   const at::Tensor& weight, double epsilon,
                                                   at::ScalarType dtype) {
  const auto x = x_any.contiguous();
  const auto weight32 = weight.to(at::kFloat).contiguous();
  const int64_t width = x.size(-1), rows = width ? x.numel() / width : 0;
  auto y = at::empty(x.sizes(), x.options().dtype(dtype));
  auto rstd = at::empty({rows}, x.options().dtype(at::kFloat));
  if (x.is_cuda()) {
    rms_norm_forward_cuda(x, weight32, epsilon, y, rstd);
    return {y, rstd};
  }
  const kernels::RmsNormForward arguments{x.data_ptr(),
                                          element_of(x),
                                          weight32.data_ptr<float>(),
                                          y.data_ptr(),
                                          element_of(y),
                                          rstd.data_ptr<float>(),
                                          width,
                                          static_cast<float>(epsilon)};
  at::parallel_for(0, rows, grain_rows(width), [&](int64_t begin, int64_t end) {
    kernels::rms_norm_forward(arguments, begin, end);
  });
  return {y, rstd};
}

std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy_any,
                                                    const at::Tensor& x_any,
                                                    const at::Tensor& weight,
                                                    const at::Tensor& rstd) {
  const auto x = x_any.contiguous(), dy = dy_any.contiguous();
  const auto weight32 = weight.to(at::kFloat).contiguous();
  auto dx = at::empty_like(x);
  if (x.is_cuda()) return {dx, rms_norm_backward_cuda(x, weight32, rstd, dy, {}, dx)};
  const int64_t width = x.size(-1), rows = width ? x.numel() / width : 0;
  const int64_t partials = std::max<int64_t>(1, (rows + kRowsPerPartial - 1) / kRowsPerPartial);
  auto dweight = at::zeros({partials, width}, weight32.options());
  const kernels::RmsNormBackward arguments{
      x.data_ptr(),           element_of(x), weight32.data_ptr<float>(),
      rstd.data_ptr<float>(), dy.data_ptr(), element_of(dy),
      dx.data_ptr(),          width};
  float* sums = dweight.data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, grain_rows(width) / kRowsPerPartial);
  at::parallel_for(0, partials, grain, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      kernels::rms_norm_backward(arguments, p * kRowsPerPartial,
                                 std::min(rows, (p + 1) * kRowsPerPartial), sums + p * width);
    }
  });
  return {dx, dweight.sum(0)};
}

}  // namespace internal

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const auto dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto wide = x.to(dtype);
  const auto rstd = (wide.square().mean(-1, /*keepdim=*/true) + epsilon).rsqrt();
  return (weight.to(dtype) * (wide * rstd)).to(internal::dtype_under_autocast(x));
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  require(x.dim() >= 1 && x.is_floating_point(),
          "[rms_norm] expected x of shape (..., C) and a floating dtype, got ", x.sizes(), " of ",
          x.scalar_type());
  require(weight.dim() == 1 && weight.size(0) == x.size(-1),
          "[rms_norm] expected weight of shape (", x.size(-1), "), got ", weight.sizes());
  const auto dtype = internal::dtype_under_autocast(x);
  if (!internal::has_rms_norm_pass(x, weight, dtype)) return rms_norm_reference(x, weight, epsilon);
  return FusedRmsNorm::apply(x, weight, epsilon, dtype);
}

}  // namespace flashstep
