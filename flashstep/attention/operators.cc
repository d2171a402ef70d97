// flashstep::attention and attention_with_logsumexp as operators, for callers that know PyTorch's
// dispatcher only (Python's torch.ops.flashstep).
#include "flashstep/attention.h"
#include "flashstep/attention/implementations.h"

namespace flashstep::internal {

void register_attention_kernels(torch::Library& library);  // kernel_function.cc

namespace {

using at::Tensor;

AttentionOptions options_of(bool causal, bool align_last, std::optional<double> scale,
                            std::string_view implementation, std::optional<bool> deterministic) {
  AttentionOptions options;
  options.causal = causal;
  options.align_last = align_last;
  options.scale = scale;
  options.implementation = std::string(implementation);
  options.deterministic = deterministic;
  return options;
}

Tensor attention_operator(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                          bool align_last, std::optional<double> scale,
                          std::string_view implementation, std::optional<bool> deterministic) {
  return attention(q, k, v, options_of(causal, align_last, scale, implementation, deterministic));
}

std::tuple<Tensor, Tensor> attention_with_logsumexp_operator(const Tensor& q, const Tensor& k,
                                                             const Tensor& v, bool causal,
                                                             bool align_last,
                                                             std::optional<double> scale,
                                                             std::string_view implementation,
                                                             std::optional<bool> deterministic) {
  return attention_with_logsumexp(
      q, k, v, options_of(causal, align_last, scale, implementation, deterministic));
}

constexpr const char* kArguments =
    "(Tensor q, Tensor k, Tensor v, *, bool causal=False, bool align_last=False, "
    "float? scale=None, str implementation=\"auto\", bool? deterministic=None)";

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
