#include "flashstep/attention/implementations.h"
#include "flashstep/error.h"

namespace flashstep::internal {

at::Tensor sdpa_attention(const AttentionProblem& problem) {
  const auto& [scale, causal, diagonal, deterministic] = problem.settings;
  const int64_t m = problem.k.size(-2);
  // PyTorch's is_causal aligns the first query with the first key; other alignments need a mask,
  // except that a single query at the last key sees everything. A row that sees nothing (n > m)
  // is left to the formula.
  if (causal && diagonal < 0) return naive_attention(problem, /*with_logsumexp=*/false).first;
  // On a GPU cuDNN's and the memory-efficient backward passes add up by atomics, and which of
  // PyTorch's kernels runs is not ours to say.
  const bool differentiates =
      at::GradMode::is_enabled() &&
      (problem.q.requires_grad() || problem.k.requires_grad() || problem.v.requires_grad());
  require(!(deterministic && differentiates && problem.q.is_cuda()),
          "[attention] expected implementation cuda or naive where gradients must repeat bit for "
          "bit, got sdpa with deterministic");
  const bool aligned_first = causal && diagonal == 0;
  const bool needs_mask = causal && diagonal > 0 && diagonal < m - 1;
  std::optional<at::Tensor> visible;
  if (needs_mask) visible = causal_mask(problem).logical_not();
  // PyTorch's fused kernels want exactly (B, H, N, D).
  const auto q = with_dimensions(problem.q, 4), k = with_dimensions(problem.k, 4),
             v = with_dimensions(problem.v, 4);
  const auto out = at::scaled_dot_product_attention(q, k, v, visible, /*dropout_p=*/0.0,
                                                    /*is_causal=*/aligned_first, scale,
                                                    /*enable_gqa=*/k.size(1) != q.size(1));
  return out.reshape(problem.q.sizes());
}

}  // namespace flashstep::internal
