// The pass over tiles of keys: P and dS of a step from its products, and what a mask hides.
#pragma once

#include "flashstep/attention/cuda/backward_plan.h"
#include "flashstep/attention/cuda/mma.cuh"
#include "flashstep/attention/cuda/ptx.cuh"

namespace flashstep::attention_cuda {

// Whether some query of a step must not see some key of the block.
struct HiddenPairs {
  bool ahead, behind;  // of the query; of its window, or perhaps of its document
};
template <typename Shape>
__device__ inline HiddenPairs hidden_pairs(const Problem& problem, int64_t first_key,
                                           int64_t first_query) {
  const int64_t end_key = first_key + Shape::kTile.keys;
  const int64_t end_query = first_query + Shape::kTile.queries;
  return {
      end_key > problem.m || first_query + problem.diagonal < end_key - 1,
      first_key + problem.window < end_query + problem.diagonal || problem.documents != nullptr};
}

// P = 0 for hidden pairs: `key` and `query` are those of the lane's first number.
template <typename Shape, int kColumns>
__device__ inline void hide_scores(float (&scores)[Shape::kRows][kColumns][4],
                                   const Problem& problem, HiddenPairs hidden, int batch,
                                   int64_t key, int64_t query) {
  // From this one on (counted from `query`) the queries see the lane's first key.
  const int first = static_cast<int>(key - problem.diagonal - query);
  if (hidden.ahead) {
#pragma unroll
    for (int half = 0; half < 2 * Shape::kRows; ++half) {
      const bool is_there = key + 8 * half < problem.m;
      const int begin = is_there ? first + 8 * half : Shape::kGroup;
#pragma unroll
      for (int column = 0; column < kColumns; ++column)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (column * kMmaColumns + i < begin) scores[half / 2][column][half % 2 * 2 + i] = 0;
    }
  }
  if (!hidden.behind) return;
#pragma unroll
  for (int half = 0; half < 2 * Shape::kRows; ++half) {
    const int end = first + 8 * half + static_cast<int>(problem.window);
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (column * kMmaColumns + i >= end) scores[half / 2][column][half % 2 * 2 + i] = 0;
  }
  if (problem.documents == nullptr) return;
  const int n = static_cast<int>(problem.n), lane_key = static_cast<int>(key);
  const int lane_query = static_cast<int>(query);
  const int32_t* const begins = problem.documents + int64_t{batch} * n;
  const int32_t* const ends = begins + problem.batches * n;
  const int last_key = lane_key + 8 * (2 * Shape::kRows - 1);
  if (load_in_order(begins + min(last_key, n - 1)) <= lane_query &&
      load_in_order(ends + min(lane_key, n - 1)) >= lane_query + Shape::kGroup)
    return;
#pragma unroll
  for (int half = 0; half < 2 * Shape::kRows; ++half) {
    const int here = min(lane_key + 8 * half, n - 1);
    const int begin = load_in_order(begins + here);
    const int count = load_in_order(ends + here) - begin;
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (static_cast<unsigned>(lane_query - begin + column * kMmaColumns + i) >=
            static_cast<unsigned>(count))
          scores[half / 2][column][half % 2 * 2 + i] = 0;
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
