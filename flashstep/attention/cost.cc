#include "flashstep/attention/cost.h"

#include <algorithm>

namespace flashstep {
namespace {

double query_elements(const AttentionSize& s) {
  return static_cast<double>(s.batches * s.heads) * static_cast<double>(s.n * s.head_dim);
}

double key_elements(const AttentionSize& s) {
  return static_cast<double>(s.batches * s.kv_heads) * static_cast<double>(s.m * s.head_dim);
}

double logsumexp_bytes(const AttentionSize& s) {
  return 4.0 * static_cast<double>(s.batches * s.heads) * static_cast<double>(s.n);
}

// Query i and the keys 0..i + diagonal: clamp(i + 1 + diagonal, 0, M), none before row `first`, all
// from `full` on.
int64_t pairs_up_to(const AttentionSize& s, int64_t diagonal) {
  const int64_t first = std::clamp<int64_t>(-diagonal, 0, s.n);
  const int64_t full = std::max(first, std::clamp<int64_t>(s.m - diagonal, 0, s.n));
  const int64_t slope = (full - first) * (first + full + 1 + 2 * diagonal) / 2;
  return slope + (s.n - full) * s.m;
}

}  // namespace

int64_t visible_pairs(const AttentionSize& s) {
  if (!s.causal) return s.n * s.m;
  const int64_t before_window =
      s.window == INT64_MAX ? 0 : pairs_up_to(s, std::max(s.diagonal - s.window, -s.n));
  return pairs_up_to(s, s.diagonal) - before_window;
}

double attention_forward_flops(const AttentionSize& s) {
  return 4.0 * static_cast<double>(s.batches * s.heads * s.head_dim) *
         static_cast<double>(visible_pairs(s));
}

double attention_backward_flops(const AttentionSize& s) { return 2.5 * attention_forward_flops(s); }

double attention_softmax_flops(const AttentionSize& s) { return 5 * attention_matrix_bytes(s, 1); }

double attention_softmax_backward_flops(const AttentionSize& s) {
  return 4 * attention_matrix_bytes(s, 1);
}

double attention_forward_bytes(const AttentionSize& s, int64_t element_bytes) {
  const auto element = static_cast<double>(element_bytes);
  return element * (2 * query_elements(s) + 2 * key_elements(s)) + logsumexp_bytes(s);
}

double attention_backward_bytes(const AttentionSize& s, int64_t element_bytes) {
  const auto element = static_cast<double>(element_bytes);
  return element * (4 * query_elements(s) + 4 * key_elements(s)) + logsumexp_bytes(s);
}

double attention_matrix_bytes(const AttentionSize& s, int64_t element_bytes) {
  return static_cast<double>(element_bytes * s.batches * s.heads) * static_cast<double>(s.n * s.m);
}

NaiveAttentionMemory naive_attention_memory(const AttentionSize& s, int64_t element_bytes) {
  const double matrix = attention_matrix_bytes(s, element_bytes);
  const double kept = (s.causal ? 2 : 1) * matrix;
  return {.kept = kept, .forward_peak = kept + matrix, .backward_peak = 3 * matrix};
}

}  // namespace flashstep
