// The pass over tiles of keys: P and dS of a step from its products, and what a mask hides.
#pragma once

#include "flashstep/attention/cuda/backward_plan.h"
#include "flashstep/attention/cuda/mma.cuh"
#include "flashstep/attention/cuda/ptx.cuh"

namespace flashstep::attention_cuda {

// Whether some query of a step must not see some key of the block.
template <typename Shape>
__device__ inline bool needs_mask(const Problem& problem, int64_t first_key, int64_t first_query) {
  const int64_t end_key = first_key + Shape::kTile.keys;
  return end_key > problem.m || (problem.causal && first_query + problem.diagonal < end_key - 1);
}

// P = 0 for hidden pairs: `key` and `query` are those of the lane's first number.
template <typename Shape, int kColumns>
__device__ inline void hide_scores(float (&scores)[Shape::kRows][kColumns][4],
                                   const Problem& problem, int64_t key, int64_t query) {
#pragma unroll
  for (int half = 0; half < 2 * Shape::kRows; ++half) {
    // From this one on (counted from `query`) the queries see the key.
    int64_t first = problem.causal ? key + 8 * half - problem.diagonal - query : 0;
    if (key + 8 * half >= problem.m || first > Shape::kGroup) first = Shape::kGroup;
    const int first_query = static_cast<int>(first < 0 ? 0 : first);
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (column * kMmaColumns + i < first_query) scores[half / 2][column][half % 2 * 2 + i] = 0;
  }
}

// P from S, in place; `stats` is the address of the logsumexp of the lane's first query.
template <typename Shape, int kColumns>
__device__ inline void probabilities(float (&scores)[Shape::kRows][kColumns][4], float scale_log2,
                                     uint32_t stats) {
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const uint2 logsumexp = load_shared_pair(stats + column * kMmaColumns * 4);
#pragma unroll
    for (int row = 0; row < Shape::kRows; ++row)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scores[row][column][i] =
            exp2_approx(scores[row][column][i] * scale_log2 -
                        __uint_as_float(i % 2 == 0 ? logsumexp.x : logsumexp.y));
  }
}

// dS = P o (dP - D), in place of dP.
template <typename Shape, int kColumns>
__device__ inline void score_gradients(const float (&scores)[Shape::kRows][kColumns][4],
                                       float (&grads)[Shape::kRows][kColumns][4], uint32_t stats) {
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const uint2 dots = load_shared_pair(stats + (Shape::kTile.queries + column * kMmaColumns) * 4);
#pragma unroll
    for (int row = 0; row < Shape::kRows; ++row)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        grads[row][column][i] =
            scores[row][column][i] *
            (grads[row][column][i] - __uint_as_float(i % 2 == 0 ? dots.x : dots.y));
  }
}

}  // namespace flashstep::attention_cuda
