// One attention problem as the kernels see it: raw pointers, strides and sizes; no torch headers.
#pragma once

#include <cstdint>

namespace flashstep::attention_kernel {

enum class Element { kFloat32, kBfloat16, kFloat16 };

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

struct Problem {
  Element element;
  int64_t batches;
  int64_t heads;     // of q, out and their gradients; a multiple of kv_heads
  int64_t kv_heads;  // of k, v; query head h reads key head h / (heads / kv_heads)
  int64_t n;         // queries, >= 1
  int64_t m;         // keys, >= 1
  int head_dim;      // 1..256; on a GPU a multiple of 8
  float scale;       // factor on the scores; any finite number
  bool causal;
  int64_t diagonal;    // with causal: query i sees the keys 0..i + diagonal
  bool deterministic;  // equal inputs give equal bits, also in the gradients
  bool tf32;           // float32 inputs may be rounded to TF32 (the GPU's matrix units)
};

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
