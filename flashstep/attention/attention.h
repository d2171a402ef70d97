// Scaled dot-product attention through one dispatch point: the only public header of this room.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace flashstep {

struct AttentionOptions {
  // Query i sees keys 0..i only.
  bool causal = false;
  // With causal and N != M: the last query sees the last key (query i sees keys 0..i + M - N), as
  // decoding with cached keys needs, instead of the first query seeing the first key.
  bool align_last = false;
  // Factor on the scores; 1/sqrt(D) unless given.
  std::optional<double> scale;
  // One of attention_implementations().
  std::string implementation = "auto";
};

// softmax(scale * q k^T) v with the mask above. Differentiable.
//   q (B..., N, D), k (B..., M, D), v (B..., M, D): the same floating dtype and device, any (equal)
//   leading dimensions or none. Returns (B..., N, D).
// A query that sees no key gives zeros. Under autocast q, k and v are rounded to the autocast
// dtype. UserError names the argument whose rank, shape, dtype, device, scale or implementation is
// wrong. Source: Vaswani et al., "Attention is all you need" (2017), equation 1.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionOptions& options = {});

// "auto" first, then every implementation by name:
//   naive  the formula, with tensor operations; the reference, float64 allowed
//   sdpa   PyTorch's at::scaled_dot_product_attention
std::vector<std::string> attention_implementations();

}  // namespace flashstep
