// The one autograd function behind which the kernels stand, as operators that PyTorch's dispatcher
// knows: flashstep::attention_forward and attention_backward.
#include <cmath>
#include <tuple>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/attention/implementations.h"
#include "flashstep/base/called_back.h"
#include "flashstep/error.h"

namespace flashstep::internal {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using ForwardSignature = std::tuple<Tensor, Tensor>(const Tensor& q, const Tensor& k,
                                                    const Tensor& v, double scale, bool causal,
                                                    int64_t diagonal, bool deterministic,
                                                    std::string_view kernel,
                                                    std::optional<int64_t> window,
                                                    const std::optional<Tensor>& documents);
using BackwardSignature = std::tuple<Tensor, Tensor, Tensor>(
    const Tensor& grad_out, const std::optional<Tensor>& grad_logsumexp, const Tensor& q,
    const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& logsumexp, double scale,
    bool causal, int64_t diagonal, bool deterministic, std::string_view kernel,
    const std::optional<Tensor>& cos, const std::optional<Tensor>& sin,
    std::optional<int64_t> window, const std::optional<Tensor>& documents);

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

// A result in x's own layout where D has unit stride there, so that what was transposed
// for the call can be transposed back for free. (Rows that overlap have no layout of their own:
// empty_like then orders the dimensions as it likes.)
Tensor empty_like_contiguous_last(const Tensor& x) {
  if (x.stride(-1) == 1) {
    const Tensor output = at::empty_like(x);
    if (output.stride(-1) == 1) return output;
  }
  return at::empty(x.sizes(), x.options());
}

at::ScalarType wide_dtype(at::ScalarType dtype) {  // of the logsumexp
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// The logsumexp of q's rows.
Tensor empty_logsumexp(const Tensor& q) {
  return at::empty(q.sizes().slice(0, q.dim() - 1), q.options().dtype(wide_dtype(q.scalar_type())));
}

Tensor readable(const Tensor& x) {
  const Tensor view = with_dimensions(x, 4);
  return view.stride(3) == 1 || view.size(3) == 1 ? view : view.contiguous();
}

// As kernels see them: one number of batches.
Tensor flat_documents(const std::optional<Tensor>& documents) {
  return documents ? documents->view({2, -1, documents->size(-1)}) : Tensor();
}

// A result of rank above four is made contiguous, so that it has the view.
Tensor empty_output(const Tensor& x) {
  return x.dim() > 4 ? at::empty(x.sizes(), x.options()) : empty_like_contiguous_last(x);
}

int64_t known_diagonal(int64_t diagonal, const Tensor& q, const Tensor& k) {
  return diagonal == kLastSeesLast ? k.size(-2) - q.size(-2) : diagonal;
}

// The operators are open to callers that come past attention(): what they give is checked here.
const AttentionKernel& checked_kernel(std::string_view name, const Tensor& q, const Tensor& k,
                                      const Tensor& v, double scale, bool causal, int64_t diagonal,
                                      std::optional<int64_t> window,
                                      const std::optional<Tensor>& documents) {
  const AttentionKernel& kernel = kernel_named(name);
  check_attention_tensors(q, k, v);
  require(q.numel() > 0 && k.numel() > 0, "[attention] expected a query and a key, got q ",
          q.sizes(), " and k ", k.sizes());
  require(std::isfinite(scale), "[attention] expected a finite scale, got ", scale);
  check_window(causal, window);
  if (documents) {
    check_documents(*documents, q, k);
    require(!causal || diagonal == 0, "[attention] expected diagonal 0 with documents, got ",
            diagonal);
    require(documents->is_contiguous(), "[attention] expected contiguous documents, got ",
            documents->sizes(), " of strides ", documents->strides());
  }
  const std::string refusal = kernel.refusal(q, k, v);
  require(refusal.empty(), "[attention] kernel ", kernel.name, " expected ", refusal);
  return kernel;
}

void check_like(const char* name, const Tensor& x, at::IntArrayRef sizes, at::ScalarType dtype,
                at::Device device) {
  require(x.sizes() == sizes && x.scalar_type() == dtype && x.device() == device,
          "[attention] expected ", name, " ", sizes, " of ", dtype, " on ", device, ", got ",
          x.sizes(), " of ", x.scalar_type(), " on ", x.device());
}

std::tuple<Tensor, Tensor> kernel_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                          double scale, bool causal, int64_t diagonal,
                                          bool deterministic, std::string_view kernel,
                                          std::optional<int64_t> window,
                                          const std::optional<Tensor>& documents) {
  const at::NoGradGuard no_grad;
  diagonal = known_diagonal(diagonal, q, k);
  const AttentionKernel& checked = called_back([&]() -> auto& {
    return checked_kernel(kernel, q, k, v, scale, causal, diagonal, window, documents);
  });
  Tensor out = empty_output(q), logsumexp = empty_logsumexp(q);
  checked.forward({readable(q), readable(k), readable(v), with_dimensions(out, 4),
                   with_dimensions(logsumexp, 3)},
                  {scale, causal, diagonal, window, deterministic, flat_documents(documents)});
  return {out, logsumexp};
}

// For q (B, H, N, D), k and v (B, H_kv, N, D): each row's heads one behind the other.
std::tuple<Tensor, Tensor, Tensor> empty_rows_of_three(const Tensor& q, const Tensor& k) {
  const c10::SymInt heads = q.sym_size(1), of_keys = k.sym_size(1);
  const Tensor all = at::empty_symint(
      {q.sym_size(0), q.sym_size(2), heads + 2 * of_keys, q.sym_size(3)}, q.options());
  const auto part = [&](const c10::SymInt& begin, const c10::SymInt& count) {
    return all.narrow_symint(2, begin, count).transpose(1, 2);
  };
  return {part(0, heads), part(heads, of_keys), part(heads + of_keys, of_keys)};
}

void check_turns(const Tensor& turns, const AttentionKernel& kernel, const Tensor& q,
                 const Tensor& k) {
  const bool fits = turns.dim() == 2 && turns.size(0) >= q.size(2) &&
                    turns.size(1) == q.size(3) / 2 && turns.scalar_type() == at::kFloat &&
                    turns.device() == q.device() && turns.is_contiguous() &&
                    reinterpret_cast<uintptr_t>(turns.const_data_ptr()) % 16 == 0;
  require(std::string_view(kernel.name) == "cuda" && q.dim() == 4 && q.size(2) == k.size(2) &&
              q.element_size() == 2 && fits,
          "[attention] expected cos and sin (N, D / 2) float32, contiguous from a multiple of 16 "
          "bytes on, for the kernel cuda and q and k (B, H, N, D) of one N and 16 bits, got ",
          turns.sizes(), " of ", turns.scalar_type(), " for ", kernel.name, ", ", q.sizes(),
          " and ", k.sizes());
}

std::tuple<Tensor, Tensor, Tensor> kernel_backward(
    const Tensor& grad_out, const std::optional<Tensor>& grad_logsumexp, const Tensor& q,
    const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& logsumexp, double scale,
    bool causal, int64_t diagonal, bool deterministic, std::string_view kernel,
    const std::optional<Tensor>& cos, const std::optional<Tensor>& sin,
    std::optional<int64_t> window, const std::optional<Tensor>& documents) {
  const at::NoGradGuard no_grad;
  diagonal = known_diagonal(diagonal, q, k);
  const AttentionKernel& checked = called_back([&]() -> auto& {
    const auto rows = q.sizes().slice(0, q.dim() - 1);
    const auto wide = wide_dtype(q.scalar_type());
    const AttentionKernel& named =
        checked_kernel(kernel, q, k, v, scale, causal, diagonal, window, documents);
    check_like("out", out, q.sizes(), q.scalar_type(), q.device());
    check_like("grad_out", grad_out, q.sizes(), q.scalar_type(), q.device());
    check_like("logsumexp", logsumexp, rows, wide, q.device());
    if (grad_logsumexp) check_like("grad_logsumexp", *grad_logsumexp, rows, wide, q.device());
    require(cos.has_value() == sin.has_value(),
            "[attention] expected cos and sin, got one of them");
    for (const auto& turns : {cos, sin})
      if (turns) check_turns(*turns, named, q, k);
    return named;
  });
  auto [grad_q, grad_k, grad_v] =
      cos ? empty_rows_of_three(q, k)
          : std::make_tuple(empty_output(q), empty_output(k), empty_output(v));
  checked.backward({readable(q), readable(k), readable(v), readable(out),
                    with_dimensions(logsumexp.contiguous(), 3), readable(grad_out),
                    grad_logsumexp ? with_dimensions(grad_logsumexp->contiguous(), 3) : Tensor(),
                    with_dimensions(grad_q, 4), with_dimensions(grad_k, 4),
                    with_dimensions(grad_v, 4), cos.value_or(Tensor()), sin.value_or(Tensor())},
                   {scale, causal, diagonal, window, deterministic, flat_documents(documents)});
  return {grad_q, grad_k, grad_v};
}

// Shapes may be symbols, which a compiler knows nothing of but what it is asked.
bool is_symbolic(const Tensor& x) { return x.unsafeGetTensorImpl()->has_symbolic_sizes_strides(); }
Tensor output_shape(const Tensor& x) {
  if (!is_symbolic(x)) return empty_output(x);
  if (x.dim() <= 4 && x.sym_stride(-1) == 1) return at::empty_like(x);
  return at::empty_symint(x.sym_sizes(), x.options());
}
Tensor logsumexp_shape(const Tensor& q) {
  if (!is_symbolic(q)) return empty_logsumexp(q);
  return at::empty_symint(q.sym_sizes().slice(0, q.dim() - 1),
                          q.options().dtype(wide_dtype(q.scalar_type())));
}
void check_known_shapes(const Tensor& q, const Tensor& k, const Tensor& v) {
  if (is_symbolic(q) || is_symbolic(k) || is_symbolic(v)) return;
  called_back([&] { check_attention_tensors(q, k, v); });
}

std::tuple<Tensor, Tensor> forward_shapes(const Tensor& q, const Tensor& k, const Tensor& v, double,
                                          bool, int64_t, bool, std::string_view,
                                          std::optional<int64_t>, const std::optional<Tensor>&) {
  check_known_shapes(q, k, v);
  return {output_shape(q), logsumexp_shape(q)};
}

std::tuple<Tensor, Tensor, Tensor> backward_shapes(
    const Tensor&, const std::optional<Tensor>&, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor&, const Tensor&, double, bool, int64_t, bool, std::string_view,
    const std::optional<Tensor>& cos, const std::optional<Tensor>&, std::optional<int64_t>,
    const std::optional<Tensor>&) {
  check_known_shapes(q, k, v);
  if (cos) return empty_rows_of_three(q, k);
  return {output_shape(q), output_shape(k), output_shape(v)};
}

std::optional<Tensor> given(const Tensor& x) {
  return x.defined() ? std::make_optional(x) : std::nullopt;
}

// The gradients, as a function that refuses to be differentiated once more. All that they depend on
// are arguments of their own: autograd looks for inputs there, not inside of vectors, and grad_out
// alone may be a constant.
class Gradients : public torch::autograd::Function<Gradients> {
 public:
  static variable_list forward(AutogradContext*, const Tensor& grad_out,
                               const std::optional<Tensor>& grad_logsumexp, const Tensor& q,
                               const Tensor& k, const Tensor& v, const Tensor& out,
                               const Tensor& logsumexp, AttentionSettings settings,
                               std::string_view kernel, const std::optional<Tensor>& cos,
                               const std::optional<Tensor>& sin) {
    static const auto op = operator_named<BackwardSignature>("flashstep::attention_backward");
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto& [scale, causal, diagonal, window, deterministic, documents] = settings;
    auto [grad_q, grad_k, grad_v] =
        op.call(grad_out, grad_logsumexp, q, k, v, out, logsumexp, scale, causal, diagonal,
                deterministic, kernel, cos, sin, window, given(documents));
    return {grad_q, grad_k, grad_v};
  }
  static variable_list backward(AutogradContext*, variable_list) {
    refuse_second_derivatives();
    return {};
  }
};

class Attention : public torch::autograd::Function<Attention> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k,
                               const Tensor& v, AttentionSettings settings,
                               const std::string& kernel, const std::optional<Tensor>& cos,
                               const std::optional<Tensor>& sin) {
    static const auto op = operator_named<ForwardSignature>("flashstep::attention_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto& [scale, causal, diagonal, window, deterministic, documents] = settings;
    auto [out, logsumexp] =
        op.call(q, k, v, scale, causal, diagonal, deterministic, kernel, window, given(documents));
    context->save_for_backward(
        {q, k, v, out, logsumexp, cos.value_or(Tensor()), sin.value_or(Tensor()), documents});
    context->set_materialize_grads(false);
    context->saved_data["scale"] = scale;
    context->saved_data["causal"] = causal;
    context->saved_data["diagonal"] = diagonal;
    context->saved_data["window"] = window;
    context->saved_data["deterministic"] = deterministic;
    context->saved_data["kernel"] = kernel;
    return {out, logsumexp};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    const AttentionSettings settings{
        data["scale"].toDouble(),       data["causal"].toBool(),
        data["diagonal"].toInt(),       data["window"].toOptional<int64_t>(),
        data["deterministic"].toBool(), saved[7]};
    const std::string kernel = data["kernel"].toStringRef();
    const Tensor& of_out = gradients[0];
    auto inputs = Gradients::apply(of_out.defined() ? of_out : at::zeros_like(saved[3]),
                                   given(gradients[1]), saved[0], saved[1], saved[2], saved[3],
                                   saved[4], settings, kernel, given(saved[5]), given(saved[6]));
    return {inputs[0], inputs[1], inputs[2], Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

std::tuple<Tensor, Tensor> differentiable_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                                  double scale, bool causal, int64_t diagonal,
                                                  bool deterministic, std::string_view kernel,
                                                  std::optional<int64_t> window,
                                                  const std::optional<Tensor>& documents) {
  for (const Tensor& x : {q, k, v}) {
    require(!x._fw_grad(/*level=*/0).defined(),
            "[attention] expected gradients by backward(): derivatives in forward mode (jvp) are "
            "available with implementation naive only");
  }
  const bool differentiates =
      at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  if (!differentiates) {
    static const auto op = operator_named<ForwardSignature>("flashstep::attention_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    return op.call(q, k, v, scale, causal, diagonal, deterministic, kernel, window, documents);
  }
  const AttentionSettings settings{scale,  causal,        diagonal,
                                   window, deterministic, documents.value_or(Tensor())};
  auto results =
      Attention::apply(q, k, v, settings, std::string(kernel), std::nullopt, std::nullopt);
  return {results[0], results[1]};
}

}  // namespace

void refuse_second_derivatives() {
  called_back([] {
    throw UserError(
        "[attention] expected a single backward pass: second derivatives are available with "
        "implementation naive only");
  });
}

AttentionResult kernel_attention(const AttentionKernel& kernel, const AttentionProblem& problem) {
  static const auto op = operator_named<ForwardSignature>("flashstep::attention_forward");
  const auto& [scale, causal, diagonal, window, deterministic, documents] = problem.settings;
  auto [out, logsumexp] = op.call(problem.q, problem.k, problem.v, scale, causal, diagonal,
                                  deterministic, kernel.name, window, given(documents));
  return {out, logsumexp};
}

bool has_turned_attention(at::ScalarType dtype, int64_t head_dim, at::Device device,
                          const std::string& implementation) {
  const AttentionKernel* const kernel = find_attention_kernel("cuda");
  if (kernel == nullptr || (implementation != "auto" && implementation != "cuda")) return false;
  const Tensor like = at::empty({1, 1, 0, head_dim}, at::TensorOptions(device).dtype(dtype));
  return like.element_size() == 2 && kernel->refusal(like, like, like).empty();
}

Tensor turned_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cos,
                        const Tensor& sin, std::optional<int64_t> window, const Tensor& documents) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
  const AttentionSettings settings{
      scale,
      /*causal=*/true,
      /*diagonal=*/0,  window, at::globalContext().deterministicAlgorithms(), documents};
  return Attention::apply(q, k, v, settings, "cuda", std::make_optional(cos),
                          std::make_optional(sin))[0];
}

void register_attention_kernels(torch::Library& library) {
  library.def(
      "attention_forward(Tensor q, Tensor k, Tensor v, float scale, bool causal, int diagonal, "
      "bool deterministic, str kernel, int? window=None, Tensor? documents=None) -> (Tensor, "
      "Tensor)");
  library.def(
      "attention_backward(Tensor grad_out, Tensor? grad_logsumexp, Tensor q, Tensor k, Tensor v, "
      "Tensor out, Tensor logsumexp, float scale, bool causal, int diagonal, bool deterministic, "
      "str kernel, Tensor? cos=None, Tensor? sin=None, int? window=None, Tensor? documents=None) "
      "-> (Tensor, Tensor, Tensor)");
  for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
    library.impl("attention_forward", torch::dispatch(key, TORCH_FN(kernel_forward)));
    library.impl("attention_backward", torch::dispatch(key, TORCH_FN(kernel_backward)));
  }
  library.impl("attention_forward",
               torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(forward_shapes)));
  library.impl("attention_backward",
               torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(backward_shapes)));
  library.impl("attention_forward",
               torch::dispatch(c10::DispatchKey::Autograd, TORCH_FN(differentiable_forward)));
}

}  // namespace flashstep::internal
