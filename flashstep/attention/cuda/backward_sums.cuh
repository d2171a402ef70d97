// Float32 sums in the workspace. They lie in blocks of 16 rows and 8 columns, each in the order of
// C fragments (mma.cuh), so that a warp adds 512 consecutive bytes with one instruction; the
// finishing kernel puts them in rows.
#pragma once

#include "flashstep/attention/cuda/mma.cuh"
#include "flashstep/attention/cuda/ptx.cuh"

namespace flashstep::attention_cuda {

constexpr int kSumBlock = kMmaRows * kMmaColumns;

// Floats before the block at `row` (a multiple of 16) and `column` (of 8) of rows of `dim` columns.
__device__ inline int64_t sum_block(int64_t row, int column, int dim) {
  return row * dim + column * kMmaRows;
}

// The accumulators of a warp, kRows * 16 rows and kColumns * 8 columns, to the sums at `block` of
// the first of them: stored, or added atomically. (Where a launch adds once to every sum, as waves
// do, the atomic addition is the shortest one that needs no register, and has its order.)
template <int kRows, int kColumns>
__device__ inline void put_sums(float* block, int dim, const float (&c)[kRows][kColumns][4],
                                int lane, bool add) {
#pragma unroll
  for (int row = 0; row < kRows; ++row)
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      float* const at = block + sum_block(16 * row, 8 * column, dim) + lane * 4;
      const float(&value)[4] = c[row][column];
      if (add) {
        add_to_global(at, value);
      } else {
        *reinterpret_cast<float4*>(at) = make_float4(value[0], value[1], value[2], value[3]);
      }
    }
}

// The same into rows first_row, ... below `rows` and columns first_column, ... below `columns` of a
// result, times `factor`; only float32 results can be added to.
template <Element kElement, int kRows, int kColumns>
__device__ inline void put_rows(char* data, int64_t row_bytes, int64_t first_row, int64_t rows,
                                int first_column, int columns, float factor,
                                const float (&c)[kRows][kColumns][4], int lane, bool add) {
#pragma unroll
  for (int half = 0; half < 2 * kRows; ++half) {
    const int64_t row = first_row + half * 8 + lane / 4;
    if (row >= rows) continue;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const int at = first_column + column * 8 + lane % 4 * 2;
      if (at >= columns) continue;
      const float* const pair = c[half / 2][column] + half % 2 * 2;
      char* const result = data + row * row_bytes + at * element_bytes(kElement);
      if (kElement == Element::kFloat32 && add) {
        add_to_global(reinterpret_cast<float*>(result), factor * pair[0]);
        add_to_global(reinterpret_cast<float*>(result) + 1, factor * pair[1]);
      } else {
        ElementTraits<kElement>::store_pair(result, factor * pair[0], factor * pair[1]);
      }
    }
  }
}

}  // namespace flashstep::attention_cuda
