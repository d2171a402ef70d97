// Tiles of rows of the head dim in shared memory: where each 16 bytes lie, and how they come there.
//
// Memory is counted in chunks of 16 bytes: what cp.async copies and what one row of an ldmatrix
// matrix holds. ldmatrix reads the same chunk of 8 consecutive rows at a time, which must lie in 8
// different bank groups of 16 bytes; so the chunks of a row are exchanged within groups of
// kSwizzle, by an exclusive or with the number of the row.
#pragma once

#include <cstdint>

#include "flashstep/attention/cuda/ptx.cuh"

namespace flashstep::attention_cuda {

constexpr int kChunkBytes = 16;
constexpr int kBankGroups = 8;  // 32 banks of 4 bytes hold 8 chunks

// `kRows` rows of kColumns numbers of kElementBytes bytes, at an address that is a multiple of 128.
template <int kElementBytes, int kRows_, int kColumns>
struct Tile {
  static constexpr int kRows = kRows_;
  static constexpr int kRowBytes = kColumns * kElementBytes;
  static constexpr int kBytes = kRows * kRowBytes;
  static constexpr int kChunks = kRowBytes / kChunkBytes;  // in a row
  // 2, 4 or 8: the power of two in kChunks, so that the exchange stays inside the row.
  static constexpr int kSwizzle = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;
  static_assert(kRowBytes % 32 == 0, "a step of the mma is two chunks");

  // Rows r and r + kPeriod * kSwizzle have the same exchange. It is at most 8: an offset of 8 rows
  // (or 16) does not change it.
  static constexpr int kPeriod = kBankGroups / kSwizzle;

  // Byte offset of a chunk of a row.
  __device__ static uint32_t offset(int row, int chunk) {
    return row * kRowBytes + (chunk ^ ((row / kPeriod) % kSwizzle)) * kChunkBytes;
  }

  // From the address of an even chunk c0 = 0 or chunk 1 of a row (this lane's share of a fragment),
  // that of chunk c0 + step, step even and a compile-time constant after unrolling.
  __device__ static uint32_t advance(uint32_t address, int step) {
    return (address ^ ((step % kSwizzle) * kChunkBytes)) + (step - step % kSwizzle) * kChunkBytes;
  }
};

// Rows of a (rows, head_dim) array in global memory.
struct RowSource {
  const char* data;   // row 0
  int64_t row_bytes;  // distance from row to row
  int64_t rows;       // rows from here on, and chunks of a row, read as zeros
  int chunks;
};

// Starts the copy of rows first_row, ... of `source` into the tile at shared address `destination`;
// zeros beyond the end. Called by kThreads threads, `thread` in [0, kThreads). The caller commits.
template <typename TileType, int kThreads>
__device__ inline void load_tile(uint32_t destination, const RowSource& source, int64_t first_row,
                                 int thread) {
  constexpr int kTotal = TileType::kRows * TileType::kChunks;
  constexpr int kStepRows = kThreads / TileType::kChunks;
  const char* const start = source.data + first_row * source.row_bytes;
  const int rows = static_cast<int>(
      source.rows - first_row < TileType::kRows ? source.rows - first_row : TileType::kRows);
  if constexpr (kThreads % TileType::kChunks == 0 && kStepRows % 8 == 0 &&
                TileType::kRows % kStepRows == 0) {
    // A thread keeps its chunk and goes down the rows in steps that do not change the exchange.
    const int row = thread / TileType::kChunks;
    const int chunk = thread % TileType::kChunks;
    const int rows_below = chunk < source.chunks ? rows - row : 0;
    const char* from = start + row * source.row_bytes + chunk * kChunkBytes;
    const uint32_t to = destination + TileType::offset(row, chunk);
#pragma unroll
    for (int step = 0; step < TileType::kRows; step += kStepRows) {
      cp_async_16(to + step * TileType::kRowBytes, from, step < rows_below);
      from += kStepRows * source.row_bytes;
    }
  } else {
#pragma unroll
    for (int i = 0; i < (kTotal + kThreads - 1) / kThreads; ++i) {
      const int index = thread + i * kThreads;
      if (kTotal % kThreads != 0 && index >= kTotal) break;
      const int row = index / TileType::kChunks;
      const int chunk = index % TileType::kChunks;
      const bool valid = row < rows && chunk < source.chunks;
      cp_async_16(destination + TileType::offset(row, chunk),
                  valid ? start + row * source.row_bytes + chunk * kChunkBytes : source.data,
                  valid);
    }
  }
}

}  // namespace flashstep::attention_cuda
