#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/compute_copy.h"
#include "flashstep/ops/differentiable_once.h"
#include "flashstep/ops/float8.h"
#include "flashstep/ops/gradient_sum.h"
#include "flashstep/ops/passes.h"

namespace flashstep {
namespace {

using at::Tensor;
using internal::Float8Layout;
using internal::Float8Matrix;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Float8Matrix rounded(const Tensor& x, at::ScalarType type, Float8Layout layout) {
  const Tensor dense = x.contiguous();
  return internal::to_float8(dense, type, layout, internal::largest_of(dense));
}

Float8Layout layout_of(bool by_rows, bool by_columns) {
  return by_rows ? by_columns ? Float8Layout::kBoth : Float8Layout::kRows : Float8Layout::kColumns;
}

class Float8Linear : public torch::autograd::Function<Float8Linear> {
 public:
  // The weight stays as it is for backward, which rounds it again: a sharded one is gathered anew.
  static Tensor forward(AutogradContext* context, const Tensor& x_any, const Tensor& weight_any,
                        bool has_backward) {
    const Tensor rows = x_any.to(at::kBFloat16).reshape({-1, x_any.size(-1)});
    const Tensor weight = weight_any.is_leaf() ? compute_copy(weight_any, at::kBFloat16)
                                               : weight_any.to(at::kBFloat16);
    const Float8Matrix x = rounded(rows, at::kFloat8_e4m3fn,
                                   layout_of(true, has_backward && weight_any.requires_grad()));
    const Float8Matrix w = rounded(weight, at::kFloat8_e4m3fn, Float8Layout::kRows);
    const Tensor y = at::empty({rows.size(0), weight.size(0)}, rows.options());
    scaled_product(x.by_rows(), w.by_rows(), y);
    context->save_for_backward({x.columns, x.scale, weight, w.scale});
    context->saved_data["sizes"] = x_any.sizes().vec();
    context->saved_data["dtype"] = static_cast<int64_t>(x_any.scalar_type());
    context->saved_data["gradient"] = static_cast<int64_t>(internal::gradient_dtype(weight_any));
    internal::keep_weight(context, weight_any);
    auto sizes = x_any.sizes().vec();
    sizes.back() = weight.size(0);
    return y.view(sizes);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    internal::refuse_create_graph("float8_linear");
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto saved = context->get_saved_variables();
    const Tensor& weight = saved[2];
    const int64_t out = weight.size(0), width = weight.size(1);
    const bool wants_x = context->needs_input_grad(0), wants_weight = context->needs_input_grad(1);
    const Tensor rows = gradients[0].reshape({-1, out});
    const Float8Matrix dy = rounded(rows, at::kFloat8_e5m2, layout_of(wants_x, wants_weight));
    Tensor dx;
    if (wants_x) {
      dx = at::empty({rows.size(0), width}, rows.options());
      scaled_product(
          dy.by_rows(),
          internal::to_float8_again(weight, at::kFloat8_e4m3fn, Float8Layout::kColumns, saved[3])
              .by_columns(),
          dx);
      const auto dtype = static_cast<at::ScalarType>(context->saved_data["dtype"].toInt());
      dx = dx.view(context->saved_data["sizes"].toIntVector()).to(dtype);
    }
    Tensor dweight;
    if (wants_weight) dweight = weight_gradient(context, dy, {saved[0], saved[1]}, {out, width});
    return {dx, dweight, Tensor()};
  }

 private:
  static Tensor weight_gradient(AutogradContext* context, const Float8Matrix& dy,
                                const ScaledMatrix& x, at::IntArrayRef sizes) {
    const Tensor leaf = internal::weight_to_add_to(context);
    if (leaf.defined() && takes_scaled_product(leaf.grad())) {
      const Tensor sum = internal::take_gradient(leaf);
      scaled_product(dy.by_columns(), x, sum, sum);
      return sum;
    }
    const auto dtype = static_cast<at::ScalarType>(context->saved_data["gradient"].toInt());
    const auto made = dtype == at::kFloat ? at::kFloat : at::kBFloat16;
    const Tensor dweight = at::empty(sizes, dy.scale.options().dtype(made));
    scaled_product(dy.by_columns(), x, dweight);
    return dweight.to(dtype);
  }
};

}  // namespace

bool has_float8_products(const at::Device& device) { return has_scaled_products(device); }

Tensor float8_linear(const Tensor& x, const Tensor& weight) {
  require(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) &&
              weight.size(0) % 16 == 0 && weight.size(1) % 16 == 0 && weight.numel() > 0,
          "[float8_linear] expected x (..., C) and weight (R, C), C and R multiples of 16, got ",
          x.sizes(), " and ", weight.sizes());
  const auto dtype = internal::dtype_under_autocast(x);
  const auto fits = [](const Tensor& tensor) {
    return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kFloat;
  };
  require(dtype == at::kBFloat16 && fits(x) && fits(weight),
          "[float8_linear] expected x of bfloat16, or of float32 under autocast in bfloat16, and "
          "weight of bfloat16 or float32, got ",
          x.scalar_type(), " computed in ", dtype, ", and ", weight.scalar_type());
  require(has_float8_products(x.device()) && weight.device() == x.device(),
          "[float8_linear] expected x and weight on one GPU of compute capability 8.9 or higher, "
          "got ",
          x.device(), " and ", weight.device());
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (x.numel() == 0) return at::linear(x.to(at::kBFloat16), weight.to(at::kBFloat16));
  return Float8Linear::apply(x, weight, at::GradMode::is_enabled());
}

}  // namespace flashstep
