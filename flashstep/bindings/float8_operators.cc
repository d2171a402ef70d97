// torch.ops.flashstep.float8_linear, defined as the operators of layers are (layer_operators.cc).
#include <tuple>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/bindings/definitions.h"
#include "flashstep/bindings/registrations.h"
#include "flashstep/bindings/traced.h"
#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/differentiable_once.h"
#include "flashstep/ops/passes.h"

namespace flashstep::bindings {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor made(const Tensor& result, const Tensor& like) {
  return result.defined() ? result : at::empty({0}, like.options());
}

// y, x's columns in 8 bits (empty unless wanted), the scales of x and the weight.
std::tuple<Tensor, Tensor, Tensor, Tensor> float8_linear_forward(const Tensor& x,
                                                                 const Tensor& weight,
                                                                 bool wants_weight) {
  require(x.dim() == 2 && x.scalar_type() == at::kBFloat16 && weight.scalar_type() == at::kBFloat16,
          "[float8_linear] expected rows (T, C) and weight (R, C) of bfloat16, got ", x.sizes(),
          " of ", x.scalar_type(), " and ", weight.sizes(), " of ", weight.scalar_type());
  internal::check_float8_linear(x, weight);
  auto [y, columns, scale, weight_scale] = internal::float8_linear_forward(x, weight, wants_weight);
  if (!columns.defined()) columns = at::empty({0}, x.options().dtype(at::kFloat8_e4m3fn));
  return {y, columns, scale, weight_scale};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> float8_linear_forward_shapes(const Tensor& x,
                                                                        const Tensor& weight,
                                                                        bool wants_weight) {
  const c10::SymInt rows = x.sym_size(0), padded = (rows + 15) / 16 * 16;
  const auto bytes = x.options().dtype(at::kFloat8_e4m3fn), wide = x.options().dtype(at::kFloat);
  return {at::empty_symint({rows, weight.sym_size(0)}, x.options()),
          wants_weight ? at::empty_symint({x.sym_size(1), padded}, bytes) : at::empty({0}, bytes),
          at::empty({}, wide), at::empty({}, wide)};
}

// dx and dweight; those that are not wanted are empty.
std::tuple<Tensor, Tensor> float8_linear_backward(const Tensor& dy, const Tensor& x_columns,
                                                  const Tensor& scale, const Tensor& weight,
                                                  const Tensor& weight_scale, bool wants_x,
                                                  bool wants_weight) {
  const Tensor dweight = wants_weight ? at::empty(weight.sizes(), dy.options()) : Tensor();
  const Tensor dx = internal::float8_linear_backward(dy, {x_columns, scale}, weight, weight_scale,
                                                     wants_x, dweight);
  return {made(dx, dy), made(dweight, dy)};
}

std::tuple<Tensor, Tensor> float8_linear_backward_shapes(
    const Tensor& dy, const Tensor& /*x_columns*/, const Tensor& /*scale*/, const Tensor& weight,
    const Tensor& /*weight_scale*/, bool wants_x, bool wants_weight) {
  const auto shaped = [&](bool wanted, const c10::SymInt& rows) {
    return wanted ? at::empty_symint({rows, weight.sym_size(1)}, dy.options())
                  : at::empty({0}, dy.options());
  };
  return {shaped(wants_x, dy.sym_size(0)), shaped(wants_weight, weight.sym_size(0))};
}

class Float8LinearPair : public torch::autograd::Function<Float8LinearPair> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                               bool wants_weight) {
    static const auto op =
        operator_named<decltype(float8_linear_forward)>("flashstep::float8_linear_forward");
    context->saved_data["wants_x"] = x.requires_grad();
    context->saved_data["wants_weight"] = wants_weight;
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [y, columns, scale, weight_scale] = op.call(x, weight, wants_weight);
    context->save_for_backward({columns, scale, weight, weight_scale});
    context->mark_non_differentiable({columns, scale, weight_scale});
    return {y, columns, scale, weight_scale};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    internal::refuse_create_graph("float8_linear");
    static const auto op =
        operator_named<decltype(float8_linear_backward)>("flashstep::float8_linear_backward");
    const auto saved = context->get_saved_variables();
    const bool wants_x = context->saved_data["wants_x"].toBool();
    const bool wants_weight = context->saved_data["wants_weight"].toBool();
    const auto [dx, dweight] =
        op.call(gradients[0], saved[0], saved[1], saved[2], saved[3], wants_x, wants_weight);
    return {wants_x ? dx : Tensor(), wants_weight ? dweight : Tensor(), Tensor()};
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> float8_linear_differentiable(const Tensor& x,
                                                                        const Tensor& weight,
                                                                        bool wants_weight) {
  const auto results = Float8LinearPair::apply(x, weight, wants_weight);
  return {results[0], results[1], results[2], results[3]};
}

Tensor float8_linear_operator(const Tensor& x, const Tensor& weight) {
  if (!is_looked_at(x) && !is_looked_at(weight)) return flashstep::float8_linear(x, weight);
  internal::check_float8_linear(x, weight);
  static const auto op =
      operator_named<decltype(float8_linear_forward)>("flashstep::float8_linear_forward");
  const Tensor rows = x.to(at::kBFloat16).reshape_symint({-1, x.sym_size(-1)});
  const bool wants_weight = at::GradMode::is_enabled() && weight.requires_grad();
  auto sizes = x.sym_sizes().vec();
  sizes.back() = weight.sym_size(0);
  return std::get<0>(op.call(rows, weight.to(at::kBFloat16), wants_weight)).view_symint(sizes);
}

}  // namespace

void register_float8_operators(torch::Library& library) {
  Definitions definitions(library);
  definitions.composite("float8_linear(Tensor x, Tensor weight) -> Tensor",
                        &float8_linear_operator);
  definitions.pass(
      "float8_linear_forward",
      "(Tensor x, Tensor weight, bool wants_weight) -> (Tensor, Tensor, Tensor, Tensor)",
      &float8_linear_forward, &float8_linear_forward_shapes);
  definitions.gradient("float8_linear_forward", &float8_linear_differentiable);
  definitions.pass("float8_linear_backward",
                   "(Tensor dy, Tensor x_columns, Tensor scale, Tensor weight, "
                   "Tensor weight_scale, bool wants_x, bool wants_weight) -> (Tensor, Tensor)",
                   &float8_linear_backward, &float8_linear_backward_shapes);
  definitions.differentiable_once("float8_linear_backward");
}

}  // namespace flashstep::bindings
