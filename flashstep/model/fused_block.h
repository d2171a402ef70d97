// A Transformer block on a GPU in few passes over memory. TransformerBlockImpl::forward takes it
// where it can; the readable block stays the specification and the test's reference.
//
//   y1 = norm1(x)                     q, k, v = y1 [Wq Wk Wv]^T        one product
//   q, k turned by their positions, in place
//   o  = attention(q, k, v)
//   x2 = x + o Wo^T                   the sum is part of the product
//   y2 = norm2(x2)                    g, u = y2 [W1 W3]^T              one product
//   h  = silu(g) u
//   x' = x2 + h W2^T                  the sum is part of the product
//
// Two autograd functions, one on each side of attention, whose kernels turn q's and k's gradients
// back where they store them, beside v's. The gradient of
// the residual stream goes through both as an output of the first, so that nobody adds it up: the
// norms' backward does. Products compute in the autocast dtype, or on matrices that are rounded to
// 8 bits for them (ops/float8.h), on compute copies of the weights (ops/compute_copy.h); the stream
// stays in x's dtype. Gradients arrive at the block's parameters as always; q's, k's and v's, and
// w1's and w3's, are parts of one tensor.
#pragma once

#include <torch/types.h>

#include "flashstep/model.h"

namespace flashstep {

// Whether the block computes x (B, N, C) this way: on a GPU, under autocast or in a 16-bit dtype,
// without a cache, at widths of whole vectors.
bool fused_block_takes(const at::Tensor& x, const TransformerBlockImpl& block,
                       const BlockContext& context);

// x (B, N, C) -> (B, N, C), of x's dtype. Only where fused_block_takes() it.
at::Tensor fused_block(const at::Tensor& x, TransformerBlockImpl& block,
                       const BlockContext& context);

}  // namespace flashstep
