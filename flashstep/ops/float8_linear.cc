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
    const auto [y, columns, scale, weight_scale] =
        internal::float8_linear_forward(rows, weight, has_backward && weight_any.requires_grad());
    context->save_for_backward({columns, scale, weight, weight_scale});
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
    const auto dtype = static_cast<at::ScalarType>(context->saved_data["gradient"].toInt());
    Tensor dweight;
    bool adds = false;
    if (context->needs_input_grad(1)) {
      const Tensor leaf = internal::weight_to_add_to(context);
      adds = leaf.defined() && takes_scaled_product(leaf.grad());
      const auto made = dtype == at::kFloat ? at::kFloat : at::kBFloat16;
      dweight = adds ? internal::take_gradient(leaf)
                     : at::empty(weight.sizes(), weight.options().dtype(made));
    }
    Tensor dx = internal::float8_linear_backward(gradients[0].reshape({-1, weight.size(0)}),
                                                 {saved[0], saved[1]}, weight, saved[3],
                                                 context->needs_input_grad(0), dweight, adds);
    if (dx.defined()) {
      dx = dx.view(context->saved_data["sizes"].toIntVector())
               .to(static_cast<at::ScalarType>(context->saved_data["dtype"].toInt()));
    }
    return {dx, dweight.defined() && !adds ? dweight.to(dtype) : dweight, Tensor()};
  }
};

}  // namespace

bool has_float8_products(const at::Device& device) { return has_scaled_products(device); }

Tensor float8_linear(const Tensor& x, const Tensor& weight) {
  internal::check_float8_linear(x, weight);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return Float8Linear::apply(x, weight, at::GradMode::is_enabled());
}

namespace internal {

void check_float8_linear(const Tensor& x, const Tensor& weight) {
  require(x.dim() >= 1 && weight.dim() == 2 && x.sym_size(-1) == weight.sym_size(1) &&
              weight.sym_size(0) % 16 == 0 && weight.sym_size(1) % 16 == 0 &&
              weight.sym_numel() > 0,
          "[float8_linear] expected x (..., C) and weight (R, C), C and R multiples of 16, got ",
          x.sym_sizes(), " and ", weight.sym_sizes());
  const auto dtype = dtype_under_autocast(x);
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
}

std::tuple<Tensor, Tensor, Tensor, Tensor> float8_linear_forward(const Tensor& rows,
                                                                 const Tensor& weight,
                                                                 bool wants_weight) {
  const Tensor y = at::empty({rows.size(0), weight.size(0)}, rows.options());
  if (rows.size(0) == 0) {
    const Tensor scale = at::ones({}, rows.options().dtype(at::kFloat));
    Tensor columns;
    if (wants_weight)
      columns = at::empty({rows.size(1), 0}, rows.options().dtype(at::kFloat8_e4m3fn));
    return {y, columns, scale, scale.clone()};
  }
  const Float8Matrix x = rounded(rows, at::kFloat8_e4m3fn, layout_of(true, wants_weight));
  const Float8Matrix w = rounded(weight, at::kFloat8_e4m3fn, Float8Layout::kRows);
  scaled_product(x.by_rows(), w.by_rows(), y);
  return {y, x.columns, x.scale, w.scale};
}

Tensor float8_linear_backward(const Tensor& dy_any, const ScaledMatrix& x_columns,
                              const Tensor& weight, const Tensor& weight_scale, bool wants_x,
                              const Tensor& dweight, bool adds) {
  const int64_t rows = dy_any.size(0);
  Tensor dx;
  if (wants_x) dx = at::empty({rows, weight.size(1)}, dy_any.options());
  if (rows == 0) {
    if (dweight.defined() && !adds) dweight.zero_();
    return dx;
  }
  const Float8Matrix dy = rounded(dy_any, at::kFloat8_e5m2, layout_of(wants_x, dweight.defined()));
  if (wants_x) {
    scaled_product(dy.by_rows(),
                   to_float8_again(weight, at::kFloat8_e4m3fn, Float8Layout::kColumns, weight_scale)
                       .by_columns(),
                   dx);
  }
  if (dweight.defined())
    scaled_product(dy.by_columns(), x_columns, dweight, adds ? dweight : Tensor());
  return dx;
}

}  // namespace internal

}  // namespace flashstep
