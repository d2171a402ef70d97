#include "flashstep/attention/implementations.h"

namespace flashstep::internal {
namespace {

// PyTorch's fused kernels want exactly (B, H, N, D).
at::Tensor as_four_dimensions(at::Tensor x) {
  while (x.dim() < 4) x = x.unsqueeze(0);
  return x.dim() > 4 ? x.flatten(0, x.dim() - 4) : x;
}

}  // namespace

at::Tensor sdpa_attention(const AttentionProblem& problem) {
  const auto& [scale, causal, diagonal, deterministic] = problem.settings;
  const int64_t m = problem.k.size(-2);
  // PyTorch's is_causal aligns the first query with the first key; other alignments need a mask,
  // except that a single query at the last key sees everything. A row that sees nothing (n > m)
  // is left to the formula.
  if (causal && diagonal < 0) return naive_attention(problem, /*with_logsumexp=*/false).first;
  const bool aligned_first = causal && diagonal == 0;
  const bool needs_mask = causal && diagonal > 0 && diagonal < m - 1;
  std::optional<at::Tensor> visible;
  if (needs_mask) visible = hidden_pairs(problem).logical_not();
  const auto q = as_four_dimensions(problem.q), k = as_four_dimensions(problem.k),
             v = as_four_dimensions(problem.v);
  const auto out = at::scaled_dot_product_attention(q, k, v, visible, /*dropout_p=*/0.0,
                                                    /*is_causal=*/aligned_first, scale,
                                                    /*enable_gqa=*/k.size(1) != q.size(1));
  return out.reshape(problem.q.sizes());
}

}  // namespace flashstep::internal
