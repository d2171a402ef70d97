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
// result, times `factor`; only float32 results can be added to, and only those of 16 bits turned
// back, where rope has turned the rows by `rotation`. All lanes of the warp take part.
template <Element kElement, int kRows, int kColumns>
__device__ inline void put_rows(char* data, int64_t row_bytes, int64_t first_row, int64_t rows,
                                int first_column, int columns, float factor,
                                const float (&c)[kRows][kColumns][4], int lane, bool add,
                                const RowRotation& rotation = {}) {
#pragma unroll
  for (int half = 0; half < 2 * kRows; ++half) {
    const int64_t row = first_row + half * 8 + lane / 4;
    const auto value = [&](int block, int i) {
      return factor * c[half / 2][block][half % 2 * 2 + i];
    };
    char* const to =
        row < rows ? data + row * row_bytes + first_column * element_bytes(kElement) : nullptr;
    if constexpr (kElement == Element::kFloat32) {
      if (add) {
#pragma unroll
        for (int block = 0; block < kColumns; ++block) {
          const int at = block * 8 + lane % 4 * 2;
          if (to == nullptr || at >= columns - first_column) continue;
          add_to_global(reinterpret_cast<float*>(to) + at, value(block, 0));
          add_to_global(reinterpret_cast<float*>(to) + at + 1, value(block, 1));
        }
        continue;
      }
    }
    RowRotation of_row = rotation;
    if (rotation.cos != nullptr) {
      const int64_t first = min(row, rows - 1) * (columns / 2) + first_column / 2;
      of_row = {rotation.cos + first, rotation.sin + first};
    }
    put_row<kElement, kColumns>(to, columns - first_column, value, of_row);
  }
}

}  // namespace flashstep::attention_cuda
