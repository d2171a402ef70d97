// CUDA kernels of one token's way through a Transformer, with those before it in a cache. Bound by
// memory: every weight is read once, 2 FLOPs each. No torch headers here or below.
//
// All arithmetic is float32; weights and cache are of `type`. Every function enqueues on `stream`,
// allocates nothing and never waits, so that it can be captured in a CUDA graph; what it returns is
// the launch's error. Kernels start while the one before still runs: token and position, and keys
// and values of tokens before, are there before the first kernel of a token is enqueued behind
// something that is no kernel (a copy).
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "flashstep/ops/cuda/kernels.h"

namespace flashstep::model_cuda {

using ops_cuda::Element;

// x = the token's row of the table.
struct EmbedToken {
  const void* table;  // (V, width)
  Element type;
  const int64_t* token;
  float* x;  // (width)
  int64_t width;
};
cudaError_t embed_token(const EmbedToken& a, cudaStream_t stream);

// The widest row that row_products takes; one of a multiple of 8 elements, at 16 bytes.
constexpr int64_t kWidestRow = 16'384;

// y = W x for up to three matrices, their products one behind the other.
struct RowProducts {
  const void* weights[3];  // (rows[i], width)
  int64_t rows[3];         // 0: none
  Element type;
  int64_t width;
  const float* x;                      // (width)
  float* y;                            // (all rows)
  const float* norm_weight = nullptr;  // (width): of rms_norm(x), which is multiplied; null: x is
  float epsilon = 0;
  const float* added = nullptr;  // (all rows), may be y: y = added + W x
  bool is_gated = false;         // y = silu(W0 x) * W1 x, (rows[0])
  int multiprocessors = 0;
};
cudaError_t row_products(const RowProducts& a, cudaStream_t stream);

constexpr int64_t kWidestHead = 256;  // that attend_token takes; a multiple of 8

// Rotates the token's query and key, appends key and value to the cache at the token's position,
// and attends to all keys, or the last `window`.
struct AttendToken {
  const float* qkv;         // (heads + 2 kv_heads, head_dim)
  const float *cos, *sin;   // (positions, head_dim / 2)
  void *keys, *values;      // (kv_heads, capacity, head_dim)
  Element type;             // of keys and values
  const int64_t* position;  // below capacity
  float* out;               // (heads, head_dim)
  float* partials;          // attend_token_partials(), workspace
  unsigned* arrived;        // (heads), 0 before and after
  int64_t heads, kv_heads, head_dim, capacity;
  int64_t window;  // 0: all keys
  int multiprocessors;
};
int64_t attend_token_partials(const AttendToken& a);  // number of floats
cudaError_t attend_token(const AttendToken& a, cudaStream_t stream);

}  // namespace flashstep::model_cuda
