// The operators of layers for Python: torch.ops.flashstep.rms_norm, swiglu and rope. Called with
// tensors that hold numbers they are the library's functions. Where torch.compile or another mode
// of Python looks at a call, shapes without numbers among them, they become pairs of operators,
// NAME_forward and NAME_backward, that a compiler can move about: precision is decided by then.
#include <tuple>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/bindings/definitions.h"
#include "flashstep/bindings/registrations.h"
#include "flashstep/bindings/rotary.h"
#include "flashstep/bindings/traced.h"
#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/passes.h"

namespace flashstep::bindings {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::tuple<Tensor, Tensor> rms_norm_forward(const Tensor& x, const Tensor& weight, double eps,
                                            at::ScalarType dtype) {
  require(weight.dim() == 1 && x.dim() >= 1 && weight.size(0) == x.size(-1),
          "[rms_norm] expected weight of x's last size, got ", weight.sizes(), " and x ",
          x.sizes());
  require(internal::has_rms_norm_pass(x, weight, dtype),
          "[rms_norm] expected float32 or bfloat16 tensors on one device, got x of ",
          x.scalar_type(), " on ", x.device());
  const auto [y, rstd] = internal::rms_norm_forward(x, weight, eps, dtype);
  return {y, rstd};
}

std::tuple<Tensor, Tensor> rms_norm_forward_shapes(const Tensor& x, const Tensor& /*weight*/,
                                                   double /*eps*/, at::ScalarType dtype) {
  const c10::SymInt width = x.sym_size(-1);
  return {at::empty_symint(x.sym_sizes(), x.options().dtype(dtype)),
          at::empty_symint({x.sym_numel() / width}, x.options().dtype(at::kFloat))};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& dy, const Tensor& x,
                                             const Tensor& weight, const Tensor& rstd) {
  const auto [dx, dweight] = internal::rms_norm_backward(dy, x, weight, rstd);
  return {dx, dweight.to(weight.scalar_type())};
}

std::tuple<Tensor, Tensor> rms_norm_backward_shapes(const Tensor& /*dy*/, const Tensor& x,
                                                    const Tensor& weight, const Tensor& /*rstd*/) {
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_like(weight)};
}

class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                               double eps, at::ScalarType dtype) {
    static const auto op =
        operator_named<decltype(rms_norm_forward)>("flashstep::rms_norm_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [y, rstd] = op.call(x, weight, eps, dtype);
    context->save_for_backward({x, weight, rstd});
    context->mark_non_differentiable({rstd});
    return {y, rstd};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op =
        operator_named<decltype(rms_norm_backward)>("flashstep::rms_norm_backward");
    const auto saved = context->get_saved_variables();
    const auto [dx, dweight] = op.call(gradients[0], saved[0], saved[1], saved[2]);
    return {dx, dweight, Tensor(), Tensor()};
  }
};

std::tuple<Tensor, Tensor> rms_norm_differentiable(const Tensor& x, const Tensor& weight,
                                                   double eps, at::ScalarType dtype) {
  const auto results = RmsNorm::apply(x, weight, eps, dtype);
  return {results[0], results[1]};
}

Tensor rms_norm_operator(const Tensor& x, const Tensor& weight, double eps) {
  if (!is_looked_at(x)) return flashstep::rms_norm(x, weight, eps);
  const auto dtype = internal::dtype_under_autocast(x);
  if (!internal::has_rms_norm_pass(x, weight, dtype)) return rms_norm_reference(x, weight, eps);
  static const auto op = operator_named<decltype(rms_norm_forward)>("flashstep::rms_norm_forward");
  return std::get<0>(op.call(x, weight, eps, dtype));
}

Tensor swiglu_forward(const Tensor& a, const Tensor& b) {
  require(internal::has_pass(a) && a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
              a.device() == b.device(),
          "[swiglu] expected a and b of one shape, dtype (float32, bfloat16) and device, got ",
          a.sizes(), " of ", a.scalar_type(), " and ", b.sizes(), " of ", b.scalar_type());
  return internal::swiglu_forward(a, b);
}

Tensor swiglu_forward_shapes(const Tensor& a, const Tensor& /*b*/) {
  return at::empty_symint(a.sym_sizes(), a.options());
}

std::tuple<Tensor, Tensor> swiglu_backward(const Tensor& dy, const Tensor& a, const Tensor& b) {
  const auto [da, db] = internal::swiglu_backward(dy, a, b);
  return {da, db};
}

std::tuple<Tensor, Tensor> swiglu_backward_shapes(const Tensor& /*dy*/, const Tensor& a,
                                                  const Tensor& b) {
  return {at::empty_symint(a.sym_sizes(), a.options()),
          at::empty_symint(b.sym_sizes(), b.options())};
}

class Swiglu : public torch::autograd::Function<Swiglu> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& a, const Tensor& b) {
    static const auto op = operator_named<decltype(swiglu_forward)>("flashstep::swiglu_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({a, b});
    return op.call(a, b);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op = operator_named<decltype(swiglu_backward)>("flashstep::swiglu_backward");
    const auto saved = context->get_saved_variables();
    const auto [da, db] = op.call(gradients[0], saved[0], saved[1]);
    return {da, db};
  }
};

Tensor swiglu_differentiable(const Tensor& a, const Tensor& b) { return Swiglu::apply(a, b); }

Tensor swiglu_operator(const Tensor& a, const Tensor& b) {
  if (!is_looked_at(a) && !is_looked_at(b)) return flashstep::swiglu(a, b);
  if (a.is_floating_point() && b.is_floating_point() && a.scalar_type() != b.scalar_type()) {
    const auto dtype = at::promote_types(a.scalar_type(), b.scalar_type());
    return swiglu_operator(a.to(dtype), b.to(dtype));
  }
  if (!internal::has_pass(a) || a.device() != b.device()) return swiglu_reference(a, b);
  static const auto op = operator_named<decltype(swiglu_forward)>("flashstep::swiglu_forward");
  return op.call(a, b);
}

// x (..., N, D); cos and sin (N, D / 2), or of x's leading dimensions (..., N, D / 2).
Tensor rope_rows(const Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  require(internal::has_pass(x) && x.dim() >= 2 && cos.sizes() == sin.sizes() &&
              cos.size(-1) * 2 == x.size(-1) && cos.scalar_type() == at::kFloat,
          "[rope] expected x (..., N, D) of float32 or bfloat16 and tables (..., N, D / 2), got ",
          x.sizes(), " of ", x.scalar_type(), " and ", cos.sizes());
  return rotate_rows(x, cos, sin, inverse);
}

// Of rank 4 in x's layout, as the kernel has it.
Tensor rope_rows_shapes(const Tensor& x, const Tensor& cos, const Tensor& /*sin*/,
                        bool /*inverse*/) {
  if (x.dim() == 4 && cos.dim() <= 2 && x.sym_stride(-1) == 1)
    return internal::empty_with_dense_rows(x);
  return at::empty_symint(x.sym_sizes(), x.options());
}

class Rope : public torch::autograd::Function<Rope> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cos,
                        const Tensor& sin, bool inverse) {
    static const auto op = operator_named<decltype(rope_rows)>("flashstep::rope_rows");
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({cos, sin});
    context->saved_data["inverse"] = inverse;
    return op.call(x, cos, sin, inverse);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op = operator_named<decltype(rope_rows)>("flashstep::rope_rows");
    const auto saved = context->get_saved_variables();
    const bool inverse = context->saved_data["inverse"].toBool();
    return {op.call(gradients[0], saved[0], saved[1], !inverse), Tensor(), Tensor(), Tensor()};
  }
};

Tensor rope_differentiable(const Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  return Rope::apply(x, cos, sin, inverse);
}

Tensor rope_operator(const Tensor& x, const std::optional<Tensor>& positions, double theta) {
  const bool looked_at = is_looked_at(x);
  check_rope(x, positions, looked_at);
  const RotaryTables tables =
      looked_at ? traced_tables(x, positions, theta) : tables_of(x, positions, theta);
  if (!internal::has_pass(x)) return rope_reference(x, tables);
  static const auto op = operator_named<decltype(rope_rows)>("flashstep::rope_rows");
  return op.call(x, tables.cos, tables.sin, /*inverse=*/false);
}

}  // namespace

void register_layer_operators(torch::Library& library) {
  Definitions definitions(library);
  definitions.composite("rms_norm(Tensor x, Tensor weight, float eps=1e-05) -> Tensor",
                        &rms_norm_operator);
  definitions.pass("rms_norm_forward",
                   "(Tensor x, Tensor weight, float eps, ScalarType dtype) -> (Tensor, Tensor)",
                   &rms_norm_forward, &rms_norm_forward_shapes);
  definitions.gradient("rms_norm_forward", &rms_norm_differentiable);
  definitions.pass("rms_norm_backward",
                   "(Tensor dy, Tensor x, Tensor weight, Tensor rstd) -> (Tensor, Tensor)",
                   &rms_norm_backward, &rms_norm_backward_shapes);
  definitions.differentiable_once("rms_norm_backward");

  definitions.composite("swiglu(Tensor a, Tensor b) -> Tensor", &swiglu_operator);
  definitions.pass("swiglu_forward", "(Tensor a, Tensor b) -> Tensor", &swiglu_forward,
                   &swiglu_forward_shapes);
  definitions.gradient("swiglu_forward", &swiglu_differentiable);
  definitions.pass("swiglu_backward", "(Tensor dy, Tensor a, Tensor b) -> (Tensor, Tensor)",
                   &swiglu_backward, &swiglu_backward_shapes);
  definitions.differentiable_once("swiglu_backward");

  definitions.composite("rope(Tensor x, Tensor? positions=None, *, float theta=10000.) -> Tensor",
                        &rope_operator);
  definitions.pass("rope_rows", "(Tensor x, Tensor cos, Tensor sin, bool inverse) -> Tensor",
                   &rope_rows, &rope_rows_shapes);
  definitions.gradient("rope_rows", &rope_differentiable);
}

}  // namespace flashstep::bindings
