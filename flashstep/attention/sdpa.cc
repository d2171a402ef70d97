#include <cfloat>

#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/attention/implementations.h"
#include "flashstep/error.h"

namespace flashstep::internal {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// PyTorch's fused kernels have no second derivatives, and say so in other words than ours: what
// they give passes through a function that refuses to be differentiated.
class Gradient : public Function<Gradient> {
 public:
  static Tensor forward(AutogradContext*, const Tensor& gradient) { return gradient; }
  static variable_list backward(AutogradContext*, const variable_list&) {
    refuse_second_derivatives();
    return {};
  }
};

class Input : public Function<Input> {
 public:
  static Tensor forward(AutogradContext*, const Tensor& x) { return x; }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    return {Gradient::apply(gradients[0])};
  }
};

Tensor differentiable_once(const Tensor& x) {
  return at::GradMode::is_enabled() && x.requires_grad() ? Input::apply(x) : x;
}

// PyTorch's CPU kernel masks before it multiplies with the scale: one that is not positive in
// float32 turns hidden scores into NaN. Then q takes its sign, or the whole of it.
std::pair<Tensor, double> with_positive_scale(const Tensor& q, double scale) {
  if (scale >= FLT_MIN) return {q, scale};
  if (scale <= -FLT_MIN) return {-q, -scale};
  return {q * scale, 1.0};
}

}  // namespace

at::Tensor sdpa_attention(const AttentionProblem& problem) {
  const auto& [any_scale, causal, diagonal, window, deterministic, documents] = problem.settings;
  const auto mask = bounded_mask(problem.settings, problem.q, problem.k);
  // PyTorch's is_causal aligns the first query with the first key; other alignments and windows
  // need a mask, except where the first query sees every key. A row that sees nothing is left to
  // the formula.
  if (some_see_nothing(mask)) return naive_attention(problem, /*with_logsumexp=*/false).first;
  // On a GPU cuDNN's and the memory-efficient backward passes add up by atomics, and which of
  // PyTorch's kernels runs is not ours to say.
  const bool differentiates =
      at::GradMode::is_enabled() &&
      (problem.q.requires_grad() || problem.k.requires_grad() || problem.v.requires_grad());
  require(!(deterministic && differentiates && problem.q.is_cuda()),
          "[attention] expected implementation cuda or naive where gradients must repeat bit for "
          "bit, got sdpa with deterministic");
  const bool cut = has_window(mask) || documents.defined();
  const bool aligned_first = causal && diagonal == 0 && !cut;
  const bool needs_mask = cut || (causal && diagonal > 0 && diagonal < mask.m - 1);
  std::optional<at::Tensor> visible;
  if (needs_mask) {
    visible =
        hidden_pairs(mask, documents, {0, mask.n}, {0, mask.m}, problem.q.device()).logical_not();
    if (visible->dim() > 2) visible = with_dimensions(*visible, 4);
  }
  // PyTorch's fused kernels want exactly (B, H, N, D).
  const auto [scaled_q, scale] = with_positive_scale(differentiable_once(problem.q), any_scale);
  const auto q = with_dimensions(scaled_q, 4),
             k = with_dimensions(differentiable_once(problem.k), 4),
             v = with_dimensions(differentiable_once(problem.v), 4);
  const auto out = at::scaled_dot_product_attention(q, k, v, visible, /*dropout_p=*/0.0,
                                                    /*is_causal=*/aligned_first, scale,
                                                    /*enable_gqa=*/k.size(1) != q.size(1));
  return out.reshape(problem.q.sizes());
}

}  // namespace flashstep::internal
