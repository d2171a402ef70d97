// The one autograd function behind which the kernels stand, as operators that PyTorch's dispatcher
// knows: flashstep::attention_forward and attention_backward.
#include <tuple>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/attention/implementations.h"
#include "flashstep/base/error.h"

namespace flashstep::internal {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using ForwardSignature = std::tuple<Tensor, Tensor>(const Tensor& q, const Tensor& k,
                                                    const Tensor& v, double scale, bool causal,
                                                    int64_t diagonal, bool deterministic,
                                                    std::string_view kernel);
using BackwardSignature = std::tuple<Tensor, Tensor, Tensor>(
    const Tensor& grad_out, const std::optional<Tensor>& grad_logsumexp, const Tensor& q,
    const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& logsumexp, double scale,
    bool causal, int64_t diagonal, bool deterministic, std::string_view kernel);

template <typename Signature>
auto operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

const AttentionKernel& kernel_named(std::string_view name) {
  const auto* kernel = find_attention_kernel(name);
  require(kernel != nullptr, "[attention] expected a kernel of this build, got \"",
          std::string(name), "\"");
  return *kernel;
}

// Room for a result in x's own layout where D has unit stride there, so that what was transposed
// for the call can be transposed back for free.
Tensor room_like(const Tensor& x) {
  return x.stride(-1) == 1 ? at::empty_like(x) : at::empty(x.sizes(), x.options());
}

// Room for the logsumexp of q's rows.
Tensor room_for_logsumexp(const Tensor& q) {
  const auto dtype = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::empty(q.sizes().slice(0, q.dim() - 1), q.options().dtype(dtype));
}

// (B..., H, N, D) as (B, H, N, D): a view, or a copy where there is none.
Tensor four_dimensions(const Tensor& x) {
  Tensor view = x;
  while (view.dim() < 4) view = view.unsqueeze(0);
  return view.dim() > 4 ? view.flatten(0, view.dim() - 4) : view;
}

Tensor readable(const Tensor& x) {
  const Tensor view = four_dimensions(x);
  return view.stride(3) == 1 || view.size(3) == 1 ? view : view.contiguous();
}

// A result of rank above four is made contiguous, so that it has the view.
Tensor writable_room(const Tensor& x) {
  return x.dim() > 4 ? at::empty(x.sizes(), x.options()) : room_like(x);
}

Tensor rows_of(const Tensor& logsumexp) {  // (B..., H, N) as (B, H, N)
  Tensor view = logsumexp;
  while (view.dim() < 3) view = view.unsqueeze(0);
  return view.dim() > 3 ? view.flatten(0, view.dim() - 3) : view;
}

std::tuple<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                                   bool causal, int64_t diagonal, bool deterministic,
                                   std::string_view kernel) {
  const at::NoGradGuard no_grad;
  Tensor out = writable_room(q), logsumexp = room_for_logsumexp(q);
  kernel_named(kernel).forward(
      {readable(q), readable(k), readable(v), four_dimensions(out), rows_of(logsumexp)},
      {scale, causal, diagonal, deterministic});
  return {out, logsumexp};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad_out,
                                            const std::optional<Tensor>& grad_logsumexp,
                                            const Tensor& q, const Tensor& k, const Tensor& v,
                                            const Tensor& out, const Tensor& logsumexp,
                                            double scale, bool causal, int64_t diagonal,
                                            bool deterministic, std::string_view kernel) {
  const at::NoGradGuard no_grad;
  Tensor grad_q = writable_room(q), grad_k = writable_room(k), grad_v = writable_room(v);
  kernel_named(kernel).backward(
      {readable(q), readable(k), readable(v), readable(out), rows_of(logsumexp.contiguous()),
       readable(grad_out), grad_logsumexp ? rows_of(grad_logsumexp->contiguous()) : Tensor(),
       four_dimensions(grad_q), four_dimensions(grad_k), four_dimensions(grad_v)},
      {scale, causal, diagonal, deterministic});
  return {grad_q, grad_k, grad_v};
}

std::tuple<Tensor, Tensor> forward_shapes(const Tensor& q, const Tensor&, const Tensor&, double,
                                          bool, int64_t, bool, std::string_view) {
  return {writable_room(q), room_for_logsumexp(q)};
}

std::tuple<Tensor, Tensor, Tensor> backward_shapes(const Tensor&, const std::optional<Tensor>&,
                                                   const Tensor& q, const Tensor& k,
                                                   const Tensor& v, const Tensor&, const Tensor&,
                                                   double, bool, int64_t, bool, std::string_view) {
  return {writable_room(q), writable_room(k), writable_room(v)};
}

// The gradients, as a function that refuses to be differentiated once more.
class Gradients : public torch::autograd::Function<Gradients> {
 public:
  static variable_list forward(AutogradContext*, const Tensor& grad_out,
                               const std::optional<Tensor>& grad_logsumexp,
                               const variable_list& saved, AttentionSettings settings,
                               std::string_view kernel) {
    static const auto op = operator_named<BackwardSignature>("flashstep::attention_backward");
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto& [scale, causal, diagonal, deterministic] = settings;
    auto [q, k, v] = op.call(grad_out, grad_logsumexp, saved[0], saved[1], saved[2], saved[3],
                             saved[4], scale, causal, diagonal, deterministic, kernel);
    return {q, k, v};
  }
  static variable_list backward(AutogradContext*, variable_list) {
    throw UserError(
        "[attention] expected a single backward pass: second derivatives are available with "
        "implementation naive only");
  }
};

class Attention : public torch::autograd::Function<Attention> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k,
                               const Tensor& v, AttentionSettings settings,
                               const std::string& kernel) {
    static const auto op = operator_named<ForwardSignature>("flashstep::attention_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto& [scale, causal, diagonal, deterministic] = settings;
    auto [out, logsumexp] = op.call(q, k, v, scale, causal, diagonal, deterministic, kernel);
    context->save_for_backward({q, k, v, out, logsumexp});
    context->set_materialize_grads(false);
    context->saved_data["scale"] = scale;
    context->saved_data["causal"] = causal;
    context->saved_data["diagonal"] = diagonal;
    context->saved_data["deterministic"] = deterministic;
    context->saved_data["kernel"] = kernel;
    return {out, logsumexp};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    const AttentionSettings settings{data["scale"].toDouble(), data["causal"].toBool(),
                                     data["diagonal"].toInt(), data["deterministic"].toBool()};
    const std::string kernel = data["kernel"].toStringRef();
    const Tensor& of_out = gradients[0];
    const Tensor& of_logsumexp = gradients[1];
    auto inputs =
        Gradients::apply(of_out.defined() ? of_out : at::zeros_like(saved[3]),
                         of_logsumexp.defined() ? std::make_optional(of_logsumexp) : std::nullopt,
                         saved, settings, kernel);
    return {inputs[0], inputs[1], inputs[2], Tensor(), Tensor()};
  }
};

std::tuple<Tensor, Tensor> differentiable_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                                  double scale, bool causal, int64_t diagonal,
                                                  bool deterministic, std::string_view kernel) {
  const bool differentiates =
      at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  if (!differentiates) {
    static const auto op = operator_named<ForwardSignature>("flashstep::attention_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    return op.call(q, k, v, scale, causal, diagonal, deterministic, kernel);
  }
  auto results = Attention::apply(
      q, k, v, AttentionSettings{scale, causal, diagonal, deterministic}, std::string(kernel));
  return {results[0], results[1]};
}

}  // namespace

AttentionResult kernel_attention(const AttentionKernel& kernel, const AttentionProblem& problem) {
  static const auto op = operator_named<ForwardSignature>("flashstep::attention_forward");
  const auto& [scale, causal, diagonal, deterministic] = problem.settings;
  auto [out, logsumexp] =
      op.call(problem.q, problem.k, problem.v, scale, causal, diagonal, deterministic, kernel.name);
  return {out, logsumexp};
}

void register_attention_kernels(torch::Library& library) {
  library.def(
      "attention_forward(Tensor q, Tensor k, Tensor v, float scale, bool causal, int diagonal, "
      "bool deterministic, str kernel) -> (Tensor, Tensor)");
  library.def(
      "attention_backward(Tensor grad_out, Tensor? grad_logsumexp, Tensor q, Tensor k, Tensor v, "
      "Tensor out, Tensor logsumexp, float scale, bool causal, int diagonal, bool deterministic, "
      "str kernel) -> (Tensor, Tensor, Tensor)");
  for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
    library.impl("attention_forward", torch::dispatch(key, TORCH_FN(forward)));
    library.impl("attention_backward", torch::dispatch(key, TORCH_FN(backward)));
  }
  library.impl("attention_forward",
               torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(forward_shapes)));
  library.impl("attention_backward",
               torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(backward_shapes)));
  library.impl("attention_forward",
               torch::dispatch(c10::DispatchKey::Autograd, TORCH_FN(differentiable_forward)));
}

}  // namespace flashstep::internal
