// The online softmax of the forward kernel, on the fragments of one warp.
//
// A row's running sums are kept relative to a reference r (in base 2: r = scale_log2 * max):
//   sum = sum_j 2^(scale_log2 s_j - r),   out = sum_j 2^(scale_log2 s_j - r) v_j.
// Any r gives the same quotient. It follows the row's maximum only when that has grown by more than
// kSlack: few steps after the first multiply the output, and numbers stay below 2^kSlack, which
// float16 holds. Source: Milakov and Gimelshein, "Online normalizer calculation for softmax"
// (2018); Dao, "FlashAttention-2" (2023), algorithm 1.
#pragma once

#include "flashstep/attention/cuda/forward_work.cuh"
#include "flashstep/attention/cuda/mma.cuh"

namespace flashstep::attention_cuda {

constexpr float kSlack = 8.0f;  // 2^8 times as large at most; sums stay far below float16's 65504
constexpr float kMinusInfinity = -__builtin_huge_valf();

// Of the rows of a warp: index [b][h] is row 16 b + 8 h + lane / 4.
template <int kRowBlocks>
struct RowState {
  float max[kRowBlocks][2];  // that the reference stands for: of the scores, unscaled
  float sum[kRowBlocks][2];  // this lane's share, until finish_sums

  __device__ RowState() {
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
      max[b][0] = max[b][1] = kMinusInfinity;
      sum[b][0] = sum[b][1] = 0.0f;
    }
  }

  // r of a row; 0 while it has seen no key.
  __device__ float reference(int b, int h, float scale_log2) const {
    return max[b][h] == kMinusInfinity ? 0.0f : max[b][h] * scale_log2;
  }
};

// Hides the keys from a row's bound on, or with kBefore those before it: score [b][j][2 h + i] is
// that of query row + 16 b + 8 h and key key + 8 j + i; row and key are this lane's first ones.
template <bool kBefore, int kRowBlocks, int kColumnBlocks, typename BoundOf>
__device__ inline void hide_scores(float (&scores)[kRowBlocks][kColumnBlocks][4], int row, int key,
                                   BoundOf bound_of) {
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int bound = bound_of(row + 16 * b + 8 * h);
#pragma unroll
      for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int of_key = key + 8 * j + i;
          if (kBefore ? of_key < bound : of_key >= bound) scores[b][j][2 * h + i] = kMinusInfinity;
        }
      }
    }
  }
}

// Hides what a query must not see, of a step's keys from `step_key` on and the block's queries
// first..last.
template <int kKeys, bool kWindow, int kRowBlocks, int kColumnBlocks>
__device__ inline void mask_scores(float (&scores)[kRowBlocks][kColumnBlocks][4],
                                   const ForwardArguments& a, int batch, int first, int last,
                                   int step_key, int row) {
  const int key = step_key + static_cast<int>(threadIdx.x) % 4 * 2;
  if (step_key + kKeys > end_key<kWindow>(a, batch, first))
    hide_scores</*kBefore=*/false>(scores, row, key,
                                   [&](int query) { return end_key<kWindow>(a, batch, query); });
  if (kWindow && step_key < first_key<kWindow>(a, batch, min(last, a.n - 1)))
    hide_scores</*kBefore=*/true>(scores, row, key,
                                  [&](int query) { return first_key<kWindow>(a, batch, query); });
}

// The four lanes of a row.
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 1));
  return fmaxf(x, __shfl_xor_sync(kFullWarp, x, 2));
}

__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(kFullWarp, x, 1);
  return x + __shfl_xor_sync(kFullWarp, x, 2);
}

// Multiplies what was summed before the references moved.
template <int kRowBlocks, int kOutBlocks>
__device__ inline void scale_out(float (&out)[kRowBlocks][kOutBlocks][4],
                                 const float (&factor)[kRowBlocks][2]) {
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int j = 0; j < kOutBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[b][j][i] *= factor[b][i / 2];
    }
  }
}

// Moves the references where a row's maximum has grown by more than kSlack: then scale_out() must
// follow with `factor`.
template <int kRowBlocks, int kColumnBlocks>
__device__ inline bool move_references(const float (&scores)[kRowBlocks][kColumnBlocks][4],
                                       RowState<kRowBlocks>& state, float (&factor)[kRowBlocks][2],
                                       float scale_log2) {
  float tile_max[kRowBlocks][2];
  bool grown = false;
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float x = fmaxf(scores[b][0][2 * h], scores[b][0][2 * h + 1]);
#pragma unroll
      for (int j = 1; j < kColumnBlocks; ++j) {
        x = fmaxf(x, fmaxf(scores[b][j][2 * h], scores[b][j][2 * h + 1]));
      }
      tile_max[b][h] = quad_max(x);
      // -infinity - -infinity is no number, and not above kSlack.
      grown |= (tile_max[b][h] - state.max[b][h]) * scale_log2 > kSlack;
    }
  }
  if (!__any_sync(kFullWarp, grown)) return false;
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float old = state.max[b][h];
      state.max[b][h] = fmaxf(old, tile_max[b][h]);
      // Of a row without a key yet, 2^-infinity = 0 times zeros.
      factor[b][h] = exp2_approx(old * scale_log2 - state.reference(b, h, scale_log2));
      state.sum[b][h] *= factor[b][h];
    }
  }
  return true;
}

// The scores become weights 2^(scale_log2 s - r), and are added to the sums.
template <int kRowBlocks, int kColumnBlocks>
__device__ inline void weigh_scores(float (&scores)[kRowBlocks][kColumnBlocks][4],
                                    RowState<kRowBlocks>& state, float scale_log2) {
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float reference = state.reference(b, h, scale_log2);
#pragma unroll
      for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) {
          scores[b][j][i] = exp2_approx(fmaf(scores[b][j][i], scale_log2, -reference));
          state.sum[b][h] += scores[b][j][i];
        }
      }
    }
  }
}

}  // namespace flashstep::attention_cuda
