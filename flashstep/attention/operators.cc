// flashstep::attention and attention_with_logsumexp as operators, for callers that know PyTorch's
// dispatcher only (Python's torch.ops.flashstep).
#include "flashstep/attention.h"
#include "flashstep/attention/implementations.h"

namespace flashstep::internal {

void register_attention_kernels(torch::Library& library);  // kernel_function.cc

namespace {

using at::Tensor;

AttentionOptions options_of(bool causal, bool align_last, std::optional<double> scale,
                            std::string_view implementation, std::optional<bool> deterministic,
                            double dropout_p, const std::optional<Tensor>& bias, int64_t window) {
  AttentionOptions options;
  options.causal = causal;
  options.align_last = align_last;
  options.scale = scale;
  options.implementation = std::string(implementation);
  options.deterministic = deterministic;
  options.dropout_p = dropout_p;
  if (bias) options.bias = *bias;
  options.window = window;
  return options;
}

Tensor attention_operator(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                          bool align_last, std::optional<double> scale,
                          std::string_view implementation, std::optional<bool> deterministic,
                          double dropout_p, const std::optional<Tensor>& bias, int64_t window) {
  return attention(q, k, v,
                   options_of(causal, align_last, scale, implementation, deterministic, dropout_p,
                              bias, window));
}

std::tuple<Tensor, Tensor> attention_with_logsumexp_operator(
    const Tensor& q, const Tensor& k, const Tensor& v, bool causal, bool align_last,
    std::optional<double> scale, std::string_view implementation, std::optional<bool> deterministic,
    double dropout_p, const std::optional<Tensor>& bias, int64_t window) {
  return attention_with_logsumexp(q, k, v,
                                  options_of(causal, align_last, scale, implementation,
                                             deterministic, dropout_p, bias, window));
}

constexpr const char* kArguments =
    "(Tensor q, Tensor k, Tensor v, *, bool causal=False, bool align_last=False, "
    "float? scale=None, str implementation=\"auto\", bool? deterministic=None, "
    "float dropout_p=0.0, Tensor? bias=None, int window=0)";

}  // namespace

void register_attention(torch::Library& library) {
  register_attention_kernels(library);
  library.def((std::string("attention") + kArguments + " -> Tensor").c_str());
  library.def(
      (std::string("attention_with_logsumexp") + kArguments + " -> (Tensor, Tensor)").c_str());
  const auto composite = c10::DispatchKey::CompositeImplicitAutograd;
  library.impl("attention", torch::dispatch(composite, TORCH_FN(attention_operator)));
  library.impl("attention_with_logsumexp",
               torch::dispatch(composite, TORCH_FN(attention_with_logsumexp_operator)));
}

}  // namespace flashstep::internal
