// The operators at both ends of a model for Python: embedding, products and the loss. They are
// defined as those of layers are (layer_operators.cc); products that a compiler looks at are
// PyTorch's.
#include <tuple>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/bindings/definitions.h"
#include "flashstep/bindings/registrations.h"
#include "flashstep/bindings/traced.h"
#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/differentiable_once.h"
#include "flashstep/ops/internal.h"
#include "flashstep/ops/passes.h"

namespace flashstep::bindings {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::tuple<Tensor, Tensor> cross_entropy_forward(const Tensor& logits, const Tensor& targets,
                                                 bool wants_gradient) {
  require(internal::has_pass(logits) && targets.device() == logits.device() && targets.numel() > 0,
          "[cross_entropy] expected float32 or bfloat16 logits and targets on one device, got ",
          logits.sizes(), " of ", logits.scalar_type(), " and ", targets.sizes());
  internal::check_targets("cross_entropy", targets, logits.sizes().slice(0, logits.dim() - 1),
                          logits.size(-1));
  const auto [loss, saved] = internal::cross_entropy_forward(logits, targets, wants_gradient);
  return {loss, saved};
}

std::tuple<Tensor, Tensor> cross_entropy_forward_shapes(const Tensor& logits, const Tensor& targets,
                                                        bool wants_gradient) {
  const auto wide = logits.options().dtype(at::kFloat);
  const Tensor loss = at::empty({}, wide);
  if (logits.is_cuda() || logits.key_set().has_backend(c10::BackendComponent::CUDABit))
    return {loss, at::empty_symint({targets.sym_numel(), c10::SymInt(2)}, wide)};
  return {loss, wants_gradient ? at::empty_symint(logits.sym_sizes(), logits.options())
                               : at::empty({0}, logits.options())};
}

Tensor cross_entropy_backward(const Tensor& dloss, const Tensor& logits, const Tensor& targets,
                              const Tensor& saved) {
  const Tensor gradient =
      internal::cross_entropy_backward(dloss, logits.contiguous(), targets.contiguous(), saved);
  return gradient.is_same(saved) ? saved.clone() : gradient;
}

Tensor cross_entropy_backward_shapes(const Tensor& /*dloss*/, const Tensor& logits,
                                     const Tensor& /*targets*/, const Tensor& /*saved*/) {
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

class CrossEntropyPair : public torch::autograd::Function<CrossEntropyPair> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& logits,
                               const Tensor& targets, bool wants_gradient) {
    static const auto op =
        operator_named<decltype(cross_entropy_forward)>("flashstep::cross_entropy_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [loss, saved] = op.call(logits, targets, wants_gradient);
    context->save_for_backward({logits, targets, saved});
    context->mark_non_differentiable({saved});
    return {loss, saved};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op =
        operator_named<decltype(cross_entropy_backward)>("flashstep::cross_entropy_backward");
    const auto saved = context->get_saved_variables();
    return {op.call(gradients[0], saved[0], saved[1], saved[2]), Tensor(), Tensor()};
  }
};

std::tuple<Tensor, Tensor> cross_entropy_differentiable(const Tensor& logits, const Tensor& targets,
                                                        bool wants_gradient) {
  const auto results = CrossEntropyPair::apply(logits, targets, wants_gradient);
  return {results[0], results[1]};
}

Tensor cross_entropy_operator(const Tensor& logits, const Tensor& targets) {
  if (!is_looked_at(logits)) return flashstep::cross_entropy(logits, targets);
  if (!internal::has_pass(logits)) return cross_entropy_reference(logits, targets);
  static const auto op =
      operator_named<decltype(cross_entropy_forward)>("flashstep::cross_entropy_forward");
  const bool wants_gradient = at::GradMode::is_enabled() && logits.requires_grad();
  return std::get<0>(op.call(logits, targets, wants_gradient));
}

Tensor linear_operator(const Tensor& x, const Tensor& weight) {
  return is_looked_at(x) || is_looked_at(weight) ? at::linear(x, weight)
                                                 : flashstep::linear(x, weight);
}

Tensor embedding_operator(const Tensor& weight, const Tensor& ids) {
  return is_looked_at(weight) || is_looked_at(ids) ? at::embedding(weight, ids)
                                                   : flashstep::embedding(weight, ids);
}

// The gradients that are not wanted are empty.
std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy_forward(const Tensor& x,
                                                                const Tensor& weight,
                                                                const Tensor& targets,
                                                                at::ScalarType dtype, bool wants_x,
                                                                bool wants_weight) {
  const auto [loss, dx, dweight] =
      internal::linear_cross_entropy_forward(x, weight, targets, dtype, wants_x, wants_weight);
  const auto made = [&](const Tensor& gradient, at::ScalarType of) {
    return gradient.defined() ? gradient : at::empty({0}, x.options().dtype(of));
  };
  return {loss, made(dx, dtype), made(dweight, at::kFloat)};
}

std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy_forward_shapes(
    const Tensor& x, const Tensor& weight, const Tensor& /*targets*/, at::ScalarType dtype,
    bool wants_x, bool wants_weight) {
  const auto narrow = x.options().dtype(dtype), wide = x.options().dtype(at::kFloat);
  return {at::empty({}, wide),
          wants_x ? at::empty_symint(x.sym_sizes(), narrow) : at::empty({0}, narrow),
          wants_weight ? at::empty_symint(weight.sym_sizes(), wide) : at::empty({0}, wide)};
}

class LinearCrossEntropyPair : public torch::autograd::Function<LinearCrossEntropyPair> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                               const Tensor& targets, at::ScalarType dtype, bool wants_x,
                               bool wants_weight) {
    static const auto op = operator_named<decltype(linear_cross_entropy_forward)>(
        "flashstep::linear_cross_entropy_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [loss, dx, dweight] = op.call(x, weight, targets, dtype, wants_x, wants_weight);
    context->save_for_backward({dx, dweight});
    context->saved_data["x"] = static_cast<int64_t>(x.scalar_type());
    context->saved_data["weight"] = static_cast<int64_t>(weight.scalar_type());
    context->saved_data["wants"] = std::vector<bool>{wants_x, wants_weight};
    context->mark_non_differentiable({dx, dweight});
    return {loss, dx, dweight};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    internal::refuse_create_graph("linear_cross_entropy");
    const auto saved = context->get_saved_variables();
    const auto wants = context->saved_data["wants"].toBoolList();
    const Tensor factor = gradients[0].to(at::kFloat).view({1});
    const auto scaled = [&](size_t i, const char* of) {
      if (!wants.get(i)) return Tensor();
      return (saved[i] * factor).to(static_cast<at::ScalarType>(context->saved_data[of].toInt()));
    };
    return {scaled(0, "x"), scaled(1, "weight"), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy_differentiable(
    const Tensor& x, const Tensor& weight, const Tensor& targets, at::ScalarType dtype,
    bool wants_x, bool wants_weight) {
  const auto results =
      LinearCrossEntropyPair::apply(x, weight, targets, dtype, wants_x, wants_weight);
  return {results[0], results[1], results[2]};
}

Tensor linear_cross_entropy_operator(const Tensor& x, const Tensor& weight, const Tensor& targets) {
  if (!is_looked_at(x) && !is_looked_at(weight))
    return flashstep::linear_cross_entropy(x, weight, targets);
  const auto dtype = internal::dtype_under_autocast(x);
  if (!internal::has_linear_cross_entropy_pass(x, weight, targets, dtype))
    return cross_entropy_operator(at::linear(x, weight), targets);
  static const auto op = operator_named<decltype(linear_cross_entropy_forward)>(
      "flashstep::linear_cross_entropy_forward");
  const bool graph = at::GradMode::is_enabled();
  return std::get<0>(op.call(x, weight, targets, dtype, graph && x.requires_grad(),
                             graph && weight.requires_grad()));
}

}  // namespace

void register_loss_operators(torch::Library& library) {
  Definitions definitions(library);
  definitions.composite("cross_entropy(Tensor logits, Tensor targets) -> Tensor",
                        &cross_entropy_operator);
  definitions.pass("cross_entropy_forward",
                   "(Tensor logits, Tensor targets, bool wants_gradient) -> (Tensor, Tensor)",
                   &cross_entropy_forward, &cross_entropy_forward_shapes);
  definitions.gradient("cross_entropy_forward", &cross_entropy_differentiable);
  definitions.pass("cross_entropy_backward",
                   "(Tensor dloss, Tensor logits, Tensor targets, Tensor saved) -> Tensor",
                   &cross_entropy_backward, &cross_entropy_backward_shapes);
  definitions.differentiable_once("cross_entropy_backward");

  definitions.composite("linear(Tensor x, Tensor weight) -> Tensor", &linear_operator);
  definitions.composite("embedding(Tensor weight, Tensor ids) -> Tensor", &embedding_operator);
  definitions.pass("linear_cross_entropy_forward",
                   "(Tensor x, Tensor weight, Tensor targets, ScalarType dtype, bool wants_x, "
                   "bool wants_weight) -> (Tensor, Tensor, Tensor)",
                   &linear_cross_entropy_forward, &linear_cross_entropy_forward_shapes);
  definitions.gradient("linear_cross_entropy_forward", &linear_cross_entropy_differentiable);
  definitions.composite("linear_cross_entropy(Tensor x, Tensor weight, Tensor targets) -> Tensor",
                        &linear_cross_entropy_operator);
}

}  // namespace flashstep::bindings
