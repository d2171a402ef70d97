// One attention problem as the kernels see it: raw pointers, strides and sizes; no torch headers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace flashstep::attention_kernel {

enum class Element { kFloat32, kBfloat16, kFloat16 };

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Within 0..most. (std::clamp takes references, for which GPU code puts numbers into memory.)
constexpr int64_t at_most(int64_t x, int64_t most) { return x < 0 ? 0 : x < most ? x : most; }

constexpr double kLog2E = 1.4426950408889634;  // log2(e): exp(x) = exp2(x log2(e))

// Distances in elements. The head dim has unit stride.
struct Strides {
  int64_t batch, head, row;
};

// A (B, H, rows, D) array that is read.
struct Input {
  const void* data;
  Strides strides;
};

// A (B, H, rows, D) array that is written.
struct Output {
  void* data;
  Strides strides;
};

// Which of n queries see which of m keys.
struct Mask {
  int64_t n, m;  // >= 1
  bool causal;
  int64_t diagonal;  // with causal: query i sees the keys 0..i + diagonal ...
  int64_t window;    // ... of which the last `window`, those after i + diagonal - window
};

struct Problem : Mask {
  Element element;
  int64_t batches;
  int64_t heads;       // of q, out and their gradients; a multiple of kv_heads
  int64_t kv_heads;    // of k, v; query head h reads key head h / (heads / kv_heads)
  int head_dim;        // 1..256; on a GPU a multiple of 8
  float scale;         // factor on the scores; any finite number
  bool deterministic;  // equal inputs give equal bits, also in the gradients
  bool tf32;           // float32 inputs may be rounded to TF32 (the GPU's matrix units)
  // Where rows hold documents that do not see each other: (2, batches, n) in the GPU's memory, the
  // first position of each position's document and the one behind its last; n = m and diagonal 0
  // then. Null: no such bounds. Plans, which are made without them, take them for one document.
  const int32_t* documents;
};

// Without a window: every key up to the diagonal.
constexpr int64_t kNoWindow = INT64_MAX;

// The same mask in numbers that sums with positions do not overflow: a diagonal from -n, where no
// query sees a key, to m, and a window of at most n + m. Without causal, the one that hides
// nothing.
constexpr Mask bounded(Mask mask) {
  if (!mask.causal) mask.diagonal = mask.m, mask.window = kNoWindow;
  mask.diagonal = std::max(mask.diagonal, -mask.n);
  const int64_t beyond = std::max<int64_t>(mask.diagonal - mask.m, 0);
  mask.diagonal = std::min(mask.diagonal, mask.m);
  if (mask.window != kNoWindow) mask.window -= std::min(beyond, mask.window);
  mask.window = std::min(mask.window, mask.n + mask.m);
  return mask;
}
constexpr Problem with_bounded_mask(Problem problem) {
  static_cast<Mask&>(problem) = bounded(problem);
  return problem;
}

// begin..end - 1; nothing where the end is not beyond the beginning.
struct Range {
  int64_t begin, end;
  constexpr int64_t size() const { return end > begin ? end - begin : 0; }
};

constexpr Range both(Range a, Range b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// The tiles of so many rows that hold some of these.
constexpr Range tiles_of(Range rows, int64_t tile) {
  return rows.size() == 0 ? Range{0, 0} : Range{rows.begin / tile, ceil_div(rows.end, tile)};
}

// The keys that a query sees, and the queries that see a key, of a bounded mask. Both ends grow
// with the position.
constexpr Range visible_keys(const Mask& mask, int64_t query) {
  const int64_t end = query + mask.diagonal + 1;
  return {at_most(end - mask.window, mask.m), at_most(end, mask.m)};
}
constexpr Range seeing_queries(const Mask& mask, int64_t key) {
  const int64_t begin = key - mask.diagonal;
  return {at_most(begin, mask.n), at_most(begin + mask.window, mask.n)};
}

// The same within documents, where there are some. Both ends still grow with the position.
constexpr Range document_of(const Problem& problem, int64_t batch, int64_t position) {
  const int32_t* const first = problem.documents + batch * problem.n + position;
  return {first[0], first[problem.batches * problem.n]};
}
constexpr Range visible_keys(const Problem& problem, int64_t batch, int64_t query) {
  const Range seen = visible_keys(problem, query);
  return problem.documents == nullptr ? seen : both(seen, document_of(problem, batch, query));
}
constexpr Range seeing_queries(const Problem& problem, int64_t batch, int64_t key) {
  const Range seen = seeing_queries(problem, key);
  return problem.documents == nullptr ? seen : both(seen, document_of(problem, batch, key));
}

// Whether the last query does not see the first key.
constexpr bool has_window(const Mask& mask) { return visible_keys(mask, mask.n - 1).begin > 0; }

// Whether about all queries see as many keys: without a mask, and in a window that is short beside
// the sequence.
constexpr bool sees_evenly(const Mask& mask) {
  return !mask.causal || (has_window(mask) && 5 * mask.window <= mask.n);
}

// out = softmax(scale q k^T) v; logsumexp = ln(sum_j exp(scale q k_j^T)), natural, (B, H, N)
// contiguous. A query that sees no key gets zeros and -infinity.
struct Forward {
  Problem problem;
  Input q, k, v;
  Output out;
  float* logsumexp;
};

// Gradients of sum(out * grad_out) + sum(logsumexp * grad_logsumexp) with respect to q, k and v;
// with cos and sin to what rope has made q and k of by them. 16-bit kernels on GPUs know these.
struct Backward {
  Problem problem;
  Input q, k, v, out, grad_out;
  const float* logsumexp;       // (B, H, N) contiguous, as the forward pass wrote it
  const float* grad_logsumexp;  // likewise, or null for zero
  Output grad_q, grad_k, grad_v;
  const float* cos = nullptr;  // (rows, D / 2) contiguous, or null
  const float* sin = nullptr;
};

}  // namespace flashstep::attention_kernel
