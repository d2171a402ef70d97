// The two kinds of matrix product of the backward passes, on a warp's accumulators.
#pragma once

#include "flashstep/attention/cuda/backward_math.cuh"

namespace flashstep::attention_cuda {

// A fragments of 16 kRows rows and all kDim columns of tile A, kept in registers; `a` is the
// address of the first row.
template <typename Math, typename TileA, typename Lane, int kDim, int kRows>
struct ResidentRows {
  typename Math::Fragment fragments[kDim / Math::kDepth][kRows];

  __device__ void load(uint32_t a, const Lane& lane) {
#pragma unroll
    for (int step = 0; step < kDim / Math::kDepth; ++step)
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        fragments[step][row] =
            Math::template a_of_rows<TileA>(a, 16 * row, step * Math::kDepth, lane);
  }
  __device__ typename Math::Fragment fragment(int step, int row) const {
    return fragments[step][row];
  }
};

// The same, read from shared memory whenever they are needed.
template <typename Math, typename TileA, typename Lane, int kDim, int kRows>
struct SharedRows {
  uint32_t a;
  Lane lane;

  __device__ void load(uint32_t address, const Lane& of_lane) {
    a = address;
    lane = of_lane;
  }
  __device__ typename Math::Fragment fragment(int step, int row) const {
    return Math::template a_of_rows<TileA>(a, 16 * row, step * Math::kDepth, lane);
  }
};

// What one step of multiply_rows multiplies.
template <typename Math, int kRows, int kColumns>
struct StepFragments {
  typename Math::Fragment left[kRows], right[kColumns / 2];

  template <typename TileB, typename RowsOfA, typename Lane>
  __device__ void load(const RowsOfA& a, uint32_t b, int step, const Lane& lane) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) left[row] = a.fragment(step, row);
#pragma unroll
    for (int column = 0; column < kColumns; column += 2)
      right[column / 2] = Math::template b_of_rows<TileB>(b, 8 * column, step * Math::kDepth, lane);
  }
};

// c (16 kRows, 8 kColumns) = rows of A times rows of tile B, summed over the kDim columns of both.
// `b` is the address of the first row of B.
template <typename Math, typename TileB, int kDim, typename RowsOfA, typename Lane, int kRows,
          int kColumns>
__device__ inline void multiply_rows(float (&c)[kRows][kColumns][4], const RowsOfA& a, uint32_t b,
                                     const Lane& lane) {
#pragma unroll
  for (int row = 0; row < kRows; ++row)
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[row][column][i] = 0;
  // Each step's fragments are read a step ahead: 2 warps of a scheduler do not hide the latency.
  constexpr int kSteps = kDim / Math::kDepth;
  StepFragments<Math, kRows, kColumns> next;
  next.template load<TileB>(a, b, 0, lane);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const StepFragments<Math, kRows, kColumns> now = next;
    if (step + 1 < kSteps) next.template load<TileB>(a, b, step + 1, lane);
#pragma unroll
    for (int column = 0; column < kColumns; column += 2) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        Math::template mma<0>(c[row][column], now.left[row], now.right[column / 2]);
        Math::template mma<1>(c[row][column + 1], now.left[row], now.right[column / 2]);
      }
    }
  }
}

// c (16 kRows, 8 kColumns) += A times columns first_column, ... of tile B, one step: kDepth rows of
// B from `row`. first_column is a multiple of 8 kColumns.
template <typename Math, typename TileB, typename Lane, int kRows, int kColumns>
__device__ inline void multiply_columns(float (&c)[kRows][kColumns][4],
                                        const typename Math::Fragment (&left)[kRows], uint32_t b,
                                        int row, int first_column, const Lane& lane) {
  // A whole number of swizzled groups is a plain offset; else each address takes its exchange.
  constexpr bool kOffset = kColumns * Math::kBlockChunks % TileB::kSwizzle == 0;
  if constexpr (kOffset) b += first_column * Math::kBytes;
  const int start = kOffset ? 0 : first_column;
#pragma unroll
  for (int column = 0; column < kColumns; column += 2) {
    const auto right = Math::template b_of_columns<TileB>(b, row, start + 8 * column, lane);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      Math::template mma<0>(c[i][column], left[i], right);
      Math::template mma<1>(c[i][column + 1], left[i], right);
    }
  }
}

}  // namespace flashstep::attention_cuda
