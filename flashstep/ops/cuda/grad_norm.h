// The L2 norm over a list of tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cuda_runtime_api.h>

#include "flashstep/ops/cuda/tensor_table.h"

namespace flashstep::multi_tensor {

struct NormPiece {
  const void* memory;  // aligned to its elements
  int64_t numel;
  int first_block;  // filled in by the launch
  Element element;
};

inline constexpr int kMostNormPieces = 1'360;  // 24 bytes each

// Elements that a block sums up are a multiple of this: 256 threads, 4 vectors of 8.
inline constexpr int64_t kNormTile = 8'192;
// About so many blocks for all tensors together: 15 rounds of an H200's 132 multiprocessors with 8
// each, so that they end together; and few enough that one block adds their sums in 3 us.
inline constexpr int64_t kNormBlocks = 16'384;

struct NormArguments {
  NormPiece pieces[kMostNormPieces];
  int count = 0;
  int64_t chunk = kNormTile;  // elements a block
  double* sums = nullptr;     // written: a sum of squares for each block of this launch
};
static_assert(sizeof(NormArguments) <= kMostArgumentBytes);

// NormArguments::chunk for so many elements in all. Sums, and so the norm's bits, follow from the
// tensors' sizes and order alone.
inline constexpr int64_t norm_chunk(int64_t numel) {
  const int64_t share = count_chunks(numel, kNormBlocks);
  return std::max<int64_t>(1, count_chunks(share, kNormTile)) * kNormTile;
}

cudaError_t launch_square_sums(NormArguments& arguments, cudaStream_t stream);

// *norm = sqrt(sum of sums).
cudaError_t launch_norm_of_sums(const double* sums, int64_t count, float* norm,
                                cudaStream_t stream);

}  // namespace flashstep::multi_tensor
