// Floating-point operations and memory traffic of attention: the only home of these formulas.
// Torch-free.
//
// A multiplication and an addition count as two operations, and only matrix products are counted.
// A causal mask leaves out exactly the pairs that it hides.
#pragma once

#include <cstdint>

namespace flashstep {

struct AttentionSize {
  int64_t batches = 1;   // B
  int64_t heads = 1;     // H, of q
  int64_t kv_heads = 1;  // of k and v
  int64_t n = 0;         // queries
  int64_t m = 0;         // keys
  int64_t head_dim = 0;  // D
  bool causal = false;
  int64_t diagonal = 0;        // with causal: query i sees the keys 0..i + diagonal ...
  int64_t window = INT64_MAX;  // ... of which the last `window`
};

// Pairs of a query and a key that it sees, of one head: N M without a mask.
int64_t visible_pairs(const AttentionSize& size);

// q k^T and weights * v: 4 B H D for each visible pair.
double attention_forward_flops(const AttentionSize& size);

// Five products for the two of the forward pass: q k^T again, dv, dweights, dq, dk.
double attention_backward_flops(const AttentionSize& size);

// What the formula's softmax does beside its products, for each of the N M scores, hidden ones too:
// maximum, difference, exponential, sum, quotient; backward product, sum, difference, product.
double attention_softmax_flops(const AttentionSize& size);
double attention_softmax_backward_flops(const AttentionSize& size);

// The least that passes through memory: q, k and v read once, the output (and 4 bytes of
// logsumexp a query) written once.
double attention_forward_bytes(const AttentionSize& size, int64_t element_bytes);

// q, k, v, the output, its gradient and the logsumexp read once, three gradients written once.
double attention_backward_bytes(const AttentionSize& size, int64_t element_bytes);

// One (B, H, N, M) matrix, of which the naive formula makes several.
double attention_matrix_bytes(const AttentionSize& size, int64_t element_bytes);

// The (B, H, N, M) matrices that implementation naive holds under autograd, in bytes. Kept for
// backward: the weights, with a mask twice (before and after its zeros). Forward holds the scores
// beside what it keeps; backward holds the weights beside their gradient and that of the scores.
struct NaiveAttentionMemory {
  double kept = 0;
  double forward_peak = 0;   // at once
  double backward_peak = 0;  // at once
};
NaiveAttentionMemory naive_attention_memory(const AttentionSize& size, int64_t element_bytes);

}  // namespace flashstep
