// The mean over the ranks of what one rank holds and what the others have sent it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

namespace flashstep {

// Elements that lie together in memory here, and at `place` in what every other rank has sent.
struct MeanPiece {
  const void* own;  // read
  void* mean;       // written; it may be `own`
  size_t place;     // bytes, a multiple of 16
  int64_t numel;
};

// A launch's arguments are at most 4 KB.
inline constexpr int kMostMeanPieces = 96;

// Where the squares of what a launch writes are added to a sum. Null: nowhere.
struct SquareSum {
  double* sum = nullptr;
  double* of_blocks = nullptr;  // for the launch alone: mean_of_ranks_blocks() of them
  bool is_first = false;        // of the sum, which may hold anything before
};

struct MeanArguments {
  MeanPiece pieces[kMostMeanPieces];
  int first_block[kMostMeanPieces];  // filled in by the launch
  int count = 0;
  const char* received = nullptr;  // a row of `stride` for each other rank, in their order
  size_t stride = 0;               // bytes, a multiple of 16
  int rank = 0, world_size = 1;
  SquareSum squares;
};

// Of a launch, at most, for pieces of so many bytes in all.
int64_t mean_of_ranks_blocks(int64_t bytes, int64_t pieces);

enum class MeanElement { kFloat32, kFloat64, kFloat16, kBFloat16 };

// Sums in the order of the ranks, in float32 (float64 of float64), and rounds the mean. Of 16-bit
// elements it may be written in float32. Squares are added up in a fixed order.
cudaError_t launch_mean_of_ranks(MeanArguments arguments, MeanElement element, cudaStream_t stream,
                                 bool to_float32 = false);

}  // namespace flashstep
