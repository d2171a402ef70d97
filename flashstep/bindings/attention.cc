// flashstep::attention and attention_with_logsumexp as operators, for callers that know PyTorch's
// dispatcher only (Python's torch.ops.flashstep).
#include "flashstep/attention.h"

#include <cmath>
#include <tuple>

#include "flashstep/attention/implementations.h"
#include "flashstep/bindings/definitions.h"
#include "flashstep/bindings/registrations.h"
#include "flashstep/bindings/traced.h"
#include "flashstep/error.h"

namespace flashstep::bindings {
namespace {

using at::Tensor;

AttentionOptions options_of(bool causal, bool align_last, std::optional<int64_t> window,
                            const std::optional<Tensor>& documents, std::optional<double> scale,
                            std::string_view implementation, std::optional<bool> deterministic) {
  AttentionOptions options;
  options.causal = causal;
  options.align_last = align_last;
  options.window = window;
  options.documents = documents.value_or(Tensor());
  options.scale = scale;
  options.implementation = std::string(implementation);
  options.deterministic = deterministic;
  return options;
}

bool is_symbolic(const Tensor& x) {
  return x.defined() && x.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// Of shapes that a compiler keeps open: the device's own kernel, whose choice hangs on dtype and D
// alone; tensor operations on tiles where it takes none of them.
std::tuple<Tensor, Tensor> symbolic_attention(const Tensor& q_any, const Tensor& k_any,
                                              const Tensor& v_any,
                                              const AttentionOptions& options) {
  const Tensor q = internal::in_autocast_dtype(q_any), k = internal::in_autocast_dtype(k_any),
               v = internal::in_autocast_dtype(v_any);
  const auto size = [](const Tensor& x, int64_t dimension) {
    return x.sym_size(dimension).guard_int(__FILE__, __LINE__);
  };
  const int64_t d = size(q, -1);
  const char* const own = q.is_cpu() ? "cpu" : "cuda";
  const int64_t dim_step = q.is_cpu() ? 1 : 8;
  const bool has_kernel = d % dim_step == 0 && d <= 256 && q.scalar_type() != at::kDouble &&
                          internal::find_attention_kernel(own) != nullptr;
  std::string name = options.implementation;
  if (name == "auto") name = has_kernel ? own : "tiled";
  require(internal::find_attention_kernel(name) != nullptr,
          "[attention] expected implementation auto, tiled, cpu or cuda for shapes that are not "
          "known when compiling, got \"",
          name, "\"");
  internal::check_window(options.causal, options.window);
  // Asking for M and N would compile anew for each of them.
  const int64_t diagonal = options.align_last ? internal::kLastSeesLast : 0;
  using Forward = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, double,
                                             bool, int64_t, bool, std::string_view,
                                             std::optional<int64_t>, const std::optional<Tensor>&);
  const auto documents = options.documents.defined()
                             ? std::make_optional(options.documents.contiguous())
                             : std::nullopt;
  static const auto op = operator_named<Forward>("flashstep::attention_forward");
  return op.call(q, k, v, options.scale.value_or(1.0 / std::sqrt(static_cast<double>(d))),
                 options.causal, diagonal,
                 options.deterministic.value_or(at::globalContext().deterministicAlgorithms()),
                 name, options.window, documents);
}

Tensor attention_operator(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                          bool align_last, std::optional<int64_t> window,
                          const std::optional<Tensor>& documents, std::optional<double> scale,
                          std::string_view implementation, std::optional<bool> deterministic) {
  const AttentionOptions options =
      options_of(causal, align_last, window, documents, scale, implementation, deterministic);
  if (is_symbolic(q) || is_symbolic(k) || is_symbolic(options.documents)) {
    return std::get<0>(symbolic_attention(q, k, v, options));
  }
  return attention(q, k, v, options);
}

std::tuple<Tensor, Tensor> attention_with_logsumexp_operator(
    const Tensor& q, const Tensor& k, const Tensor& v, bool causal, bool align_last,
    std::optional<int64_t> window, const std::optional<Tensor>& documents,
    std::optional<double> scale, std::string_view implementation,
    std::optional<bool> deterministic) {
  const AttentionOptions options =
      options_of(causal, align_last, window, documents, scale, implementation, deterministic);
  if (is_symbolic(q) || is_symbolic(k) || is_symbolic(options.documents)) {
    return symbolic_attention(q, k, v, options);
  }
  return attention_with_logsumexp(q, k, v, options);
}

constexpr const char* kArguments =
    "(Tensor q, Tensor k, Tensor v, *, bool causal=False, bool align_last=False, "
    "int? window=None, Tensor? documents=None, float? scale=None, str implementation=\"auto\", "
    "bool? deterministic=None)";

}  // namespace

void register_attention(torch::Library& library) {
  internal::register_attention_kernels(library);
  Definitions definitions(library);
  definitions.composite((std::string("attention") + kArguments + " -> Tensor").c_str(),
                        &attention_operator);
  definitions.composite(
      (std::string("attention_with_logsumexp") + kArguments + " -> (Tensor, Tensor)").c_str(),
      &attention_with_logsumexp_operator);
  definitions.plain("attention_implementations() -> str[]", &attention_implementations);
  definitions.composite("document_spans(Tensor ids, int? end=None) -> Tensor", &document_spans);
}

}  // namespace flashstep::bindings
