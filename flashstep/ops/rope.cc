#include <cmath>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/cuda_kernels.h"
#include "flashstep/ops/element.h"
#include "flashstep/ops/passes.h"

namespace flashstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Its gradient is itself, so that it has derivatives of any order.
class FusedRope : public torch::autograd::Function<FusedRope> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin, bool inverse) {
    context->save_for_backward({cos, sin});
    context->saved_data["inverse"] = inverse;
    return internal::rope_pass(x, cos, sin, inverse);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const bool inverse = context->saved_data["inverse"].toBool();
    return {FusedRope::apply(gradients[0], saved[0], saved[1], !inverse), at::Tensor(),
            at::Tensor(), at::Tensor()};
  }
};

}  // namespace

namespace internal {

// Windows that overlap have dense rows, of which empty_like() makes columns.
at::Tensor empty_with_dense_rows(const at::Tensor& x) {
  const auto result = at::empty_like(x);
  return result.sym_stride(-1) == 1 ? result : at::empty_symint(x.sym_sizes(), x.options());
}

at::Tensor rope_pass(const at::Tensor& x_any, const at::Tensor& cos, const at::Tensor& sin,
                     bool inverse) {
  const auto x = x_any.stride(-1) == 1 ? x_any : x_any.contiguous();
  const auto y = empty_with_dense_rows(x);
  if (x.is_cuda()) {
    rope_cuda(x, cos, sin, inverse, y);
    return y;
  }
  const int64_t heads = x.size(1), positions = x.size(2), head_dim = x.size(3);
  const kernels::Rope arguments{
      x.data_ptr(), y.data_ptr(), element_of(x), cos.data_ptr<float>(), sin.data_ptr<float>(),
      heads,        positions,    head_dim,      x.stride(0),           x.stride(1),
      x.stride(2),  y.stride(0),  y.stride(1),   y.stride(2),           inverse};
  at::parallel_for(0, x.size(0) * positions, grain_rows(heads * head_dim),
                   [&](int64_t begin, int64_t end) { kernels::rope(arguments, begin, end); });
  return y;
}

}  // namespace internal

at::Tensor rotary_frequencies(int64_t head_dim, double theta) {
  require(head_dim > 0 && head_dim % 2 == 0, "[rope] expected an even head_dim, got ", head_dim);
  require(theta > 0, "[rope] expected a theta above 0, got ", theta);
  const auto exponents = -at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
  return at::pow(theta, exponents);
}

RotaryTables rotary_tables(int64_t positions, const at::Tensor& frequencies) {
  const auto angles = at::outer(at::arange(positions, at::kFloat), frequencies);
  return {angles.cos(), angles.sin()};
}

RotaryTables rotary_tables(int64_t positions, int64_t head_dim, double theta) {
  return rotary_tables(positions, rotary_frequencies(head_dim, theta));
}

at::Tensor rope_reference(const at::Tensor& x, const RotaryTables& tables) {
  const auto dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto pairs = x.to(dtype).unflatten(-1, {-1, 2});
  const auto even = pairs.select(-1, 0), odd = pairs.select(-1, 1);
  const auto cos = tables.cos.to(dtype), sin = tables.sin.to(dtype);
  const auto rotated = at::stack({cos * even - sin * odd, sin * even + cos * odd}, -1);
  return rotated.flatten(-2).to(x.scalar_type());
}

at::Tensor rope(const at::Tensor& x, const RotaryTables& tables) {
  require(x.dim() == 4 && x.is_floating_point() && x.size(-1) % 2 == 0,
          "[rope] expected x of shape (B, H, N, D) with D even and a floating dtype, got ",
          x.sizes(), " of ", x.scalar_type());
  const std::vector<int64_t> expected = {x.size(2), x.size(3) / 2};
  require(tables.cos.sizes() == expected && tables.sin.sizes() == expected &&
              tables.cos.scalar_type() == at::kFloat && tables.sin.scalar_type() == at::kFloat,
          "[rope] expected float32 tables of shape (", expected[0], ", ", expected[1], "), got ",
          tables.cos.sizes(), " of ", tables.cos.scalar_type(), " and ", tables.sin.sizes(), " of ",
          tables.sin.scalar_type());
  const bool has_kernel = internal::has_cpu_kernel(x) || internal::has_cuda_kernel(x);
  if (!has_kernel || tables.cos.device() != x.device() || tables.sin.device() != x.device())
    return rope_reference(x, tables);  // which names the devices
  return FusedRope::apply(x, tables.cos.contiguous(), tables.sin.contiguous(), /*inverse=*/false);
}

}  // namespace flashstep
