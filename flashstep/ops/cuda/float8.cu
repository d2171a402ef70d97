// Bound by memory: 2 bytes read for the largest number; 2 read and 1 or 2 written to round.
#include <algorithm>
#include <cuda_fp8.h>

#include "flashstep/ops/cuda/float8.h"
#include "flashstep/ops/cuda/vector.cuh"

namespace flashstep::ops_cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpLanes;

// ---- The largest number

constexpr int kVectorsAtOnce = 4;                  // loads in flight of a thread
constexpr int64_t kMostBlocks = 8 * int64_t{132};  // of an H100: all its threads

// The larger of each half: bits of 16-bit numbers without their sign are in the numbers' order.
__device__ uint32_t larger(uint32_t a, uint32_t b) { return __vmaxu2(a, b & 0x7fff7fffu); }

template <bool kVectors>
__global__ void __launch_bounds__(kThreads) largest_kernel(const __grid_constant__ LargestOf a) {
  __shared__ uint32_t shared[kWarps];
  uint32_t found = 0;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  if constexpr (kVectors) {
    const auto* x = static_cast<const uint4*>(a.x);
    const int64_t vectors = a.count / kVector;
    for (int64_t i = first; i < vectors; i += threads * kVectorsAtOnce) {
      uint4 v[kVectorsAtOnce];
#pragma unroll
      for (int j = 0; j < kVectorsAtOnce; ++j) {
        const int64_t at = i + j * threads;
        v[j] = at < vectors ? x[at] : uint4{};
      }
#pragma unroll
      for (const uint4& of : v)
        found = larger(larger(larger(larger(found, of.x), of.y), of.z), of.w);
    }
  } else {
    const auto* x = static_cast<const uint16_t*>(a.x);
    for (int64_t i = first; i < a.count; i += threads) found = larger(found, x[i]);
  }
  // A bfloat16 is the upper half of a float32.
  raise_largest<kWarps>(a.largest, max(found & 0xffffu, found >> 16) << 16, shared);
}

// ---- Rounding

// A block takes a tile, a warp 4 x 16 vectors of it at once: each thread 4 rows of 8 columns, so
// that what it writes across is a whole word of 4 numbers.
constexpr int kTile = 128;
constexpr int kDown = 4;                           // rows of a thread
constexpr int kAcross = kTile / kVector;           // threads of a row: 16
constexpr int kStep = kDown * kThreads / kAcross;  // rows of a block at once: 64
constexpr int kTileWords = kTile / kDown;          // of a column of the tile
constexpr float kLeastScale = 0x1p-100F;           // whose reciprocal is a number, too

template <Float8 kType>
__device__ uint32_t pair(float low, float high) {
  constexpr auto kFormat = kType == Float8::kE4M3 ? __NV_E4M3 : __NV_E5M2;
  return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, kFormat);
}
template <Float8 kType>
__device__ uint32_t word(float a, float b, float c, float d) {
  return pair<kType>(a, b) | pair<kType>(c, d) << 16;
}

// Where the word of `column` and rows [4 `quad`, 4 `quad` + 4) stands: a warp that writes 16
// columns' vectors and 2 quads meets each bank once.
__device__ int place_of(int column, int quad) {
  return column * kTileWords + ((quad + 2 * (column / kVector)) & (kTileWords - 1));
}

template <Float8 kType>
__global__ void __launch_bounds__(kThreads) to_float8_kernel(const __grid_constant__ ToFloat8 a) {
  __shared__ uint32_t tile[kTile * kTileWords];
  const bool is_given = a.largest == nullptr;
  const float scale = is_given ? *a.scale : fmaxf(*a.largest / largest_of(kType), kLeastScale);
  const float factor = 1 / scale;
  if (!is_given && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *a.scale = scale;
  const int64_t top = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t left = static_cast<int64_t>(blockIdx.x) * kTile;
  const int vector = static_cast<int>(threadIdx.x) % kAcross;
  const int64_t column = left + vector * kVector;
  const auto* x = static_cast<const __nv_bfloat16*>(a.x);

  Packed<__nv_bfloat16> loaded[kTile / kStep][kDown];
#pragma unroll
  for (int step = 0; step < kTile / kStep; ++step) {
    const int64_t row = top + step * kStep + static_cast<int>(threadIdx.x) / kAcross * kDown;
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      const bool is_inside = row + i < a.height && column < a.width;
      loaded[step][i] =
          is_inside ? load(x + (row + i) * a.stride + column) : Packed<__nv_bfloat16>{};
    }
  }
#pragma unroll
  for (int step = 0; step < kTile / kStep; ++step) {
    const int row = step * kStep + static_cast<int>(threadIdx.x) / kAcross * kDown;
    float values[kDown][kVector];
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      unpack(loaded[step][i], values[i]);
#pragma unroll
      for (float& value : values[i]) value *= factor;
      if (a.rows != nullptr && top + row + i < a.height && column < a.width) {
        const auto& v = values[i];
        const uint2 words = {word<kType>(v[0], v[1], v[2], v[3]),
                             word<kType>(v[4], v[5], v[6], v[7])};
        *reinterpret_cast<uint2*>(static_cast<uint8_t*>(a.rows) + (top + row + i) * a.width +
                                  column) = words;
      }
    }
    if (a.columns == nullptr) continue;
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      tile[place_of(vector * kVector + i, row / kDown)] =
          word<kType>(values[0][i], values[1][i], values[2][i], values[3][i]);
  }
  if (a.columns == nullptr) return;
  __syncthreads();
  // Two words of a column are a thread's: 16 threads write 128 bytes.
  constexpr int kColumnThreads = kTileWords / 2;
#pragma unroll
  for (int step = 0; step < kTile; step += kThreads / kColumnThreads) {
    const int own = step + static_cast<int>(threadIdx.x) / kColumnThreads;
    const int quad = 2 * (static_cast<int>(threadIdx.x) % kColumnThreads);
    const int64_t row = top + quad * kDown;
    if (left + own >= a.width || row >= a.padded_height) continue;
    const auto words = *reinterpret_cast<const uint2*>(&tile[place_of(own, quad)]);
    *reinterpret_cast<uint2*>(static_cast<uint8_t*>(a.columns) + (left + own) * a.padded_height +
                              row) = words;
  }
}

}  // namespace

cudaError_t largest_of(const LargestOf& a, cudaStream_t stream) {
  if (a.count == 0) return cudaSuccess;
  const bool vectors = is_aligned(a.x) && a.count % kVector == 0;
  const int64_t of_a_block = int64_t{kThreads} * (vectors ? kVector * kVectorsAtOnce : 1);
  const auto blocks = static_cast<unsigned>(std::min(divide_up(a.count, of_a_block), kMostBlocks));
  const auto kernel = vectors ? largest_kernel<true> : largest_kernel<false>;
  kernel<<<blocks, kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t to_float8(const ToFloat8& a, cudaStream_t stream) {
  if (a.height == 0 || a.width == 0) return cudaSuccess;
  const dim3 blocks(static_cast<unsigned>(divide_up(a.width, kTile)),
                    static_cast<unsigned>(divide_up(a.height, kTile)));
  const auto kernel =
      a.type == Float8::kE4M3 ? to_float8_kernel<Float8::kE4M3> : to_float8_kernel<Float8::kE5M2>;
  kernel<<<blocks, kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace flashstep::ops_cuda
