// Bound by memory: 2 bytes read for the largest number; 2 read and 1 or 2 written to round.
#include <algorithm>
#include <cuda_fp8.h>

#include "flashstep/ops/cuda/float8.h"
#include "flashstep/ops/cuda/swiglu.cuh"
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

// What a thread has of a tile: rows [row, row + 4), columns [column, column + 8).
struct Place {
  int64_t top, left;
  int row, vector;

  __device__ explicit Place(int step)
      : top(static_cast<int64_t>(blockIdx.y) * kTile),
        left(static_cast<int64_t>(blockIdx.x) * kTile),
        row(step * kStep + static_cast<int>(threadIdx.x) / kAcross * kDown),
        vector(static_cast<int>(threadIdx.x) % kAcross) {}
  __device__ int64_t column() const { return left + vector * kVector; }
};

using Loaded = Packed<__nv_bfloat16>[kDown];

// Zeros outside of (height, width).
__device__ void load_rows(const void* x, int64_t stride, int64_t height, int64_t width,
                          const Place& place, Loaded& loaded) {
#pragma unroll
  for (int i = 0; i < kDown; ++i) {
    const int64_t row = place.top + place.row + i;
    const bool is_inside = row < height && place.column() < width;
    loaded[i] = is_inside
                    ? load(static_cast<const __nv_bfloat16*>(x) + row * stride + place.column())
                    : Packed<__nv_bfloat16>{};
  }
}

// Eight numbers of a row.
template <Float8 kType>
__device__ uint2 bytes_of(const float (&v)[kVector]) {
  return {word<kType>(v[0], v[1], v[2], v[3]), word<kType>(v[4], v[5], v[6], v[7])};
}

// Into `rows`, `stride` bytes from row to row.
__device__ void put_row(uint2 bytes, void* rows, int64_t stride, int64_t height, int64_t width,
                        const Place& place, int i) {
  const int64_t row = place.top + place.row + i;
  if (row >= height || place.column() >= width) return;
  *reinterpret_cast<uint2*>(static_cast<uint8_t*>(rows) + row * stride + place.column()) = bytes;
}

// The words of four columns, of four rows' words.
__device__ void transpose(const uint32_t (&rows)[kDown], uint32_t (&columns)[kDown]) {
  const uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140);
  const uint32_t low23 = __byte_perm(rows[2], rows[3], 0x5140);
  const uint32_t high01 = __byte_perm(rows[0], rows[1], 0x7362);
  const uint32_t high23 = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(low01, low23, 0x5410);
  columns[1] = __byte_perm(low01, low23, 0x7632);
  columns[2] = __byte_perm(high01, high23, 0x5410);
  columns[3] = __byte_perm(high01, high23, 0x7632);
}

__device__ void put_in_tile(const uint2 (&bytes)[kDown], uint32_t* tile, const Place& place) {
  uint32_t rows[2][kDown], columns[2][kDown];
#pragma unroll
  for (int i = 0; i < kDown; ++i) {
    rows[0][i] = bytes[i].x;
    rows[1][i] = bytes[i].y;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    transpose(rows[half], columns[half]);
#pragma unroll
    for (int i = 0; i < kDown; ++i)
      tile[place_of(place.vector * kVector + half * kDown + i, place.row / kDown)] =
          columns[half][i];
  }
}

// A tile's columns as rows of `columns`. Two words of a column are a thread's: 16 threads write 128
// bytes.
__device__ void store_columns(const uint32_t* tile, void* columns, int64_t width,
                              int64_t padded_height) {
  constexpr int kColumnThreads = kTileWords / 2;
  const int64_t top = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t left = static_cast<int64_t>(blockIdx.x) * kTile;
#pragma unroll
  for (int step = 0; step < kTile; step += kThreads / kColumnThreads) {
    const int own = step + static_cast<int>(threadIdx.x) / kColumnThreads;
    const int quad = 2 * (static_cast<int>(threadIdx.x) % kColumnThreads);
    const int64_t row = top + quad * kDown;
    if (left + own >= width || row >= padded_height) continue;
    const auto words = *reinterpret_cast<const uint2*>(&tile[place_of(own, quad)]);
    *reinterpret_cast<uint2*>(static_cast<uint8_t*>(columns) + (left + own) * padded_height + row) =
        words;
  }
}

// The factor of numbers whose largest magnitude this is; one thread leaves the scale.
template <Float8 kType>
__device__ float factor_of(const float* largest, float* scale) {
  const float exact = *largest / max_finite(kType);
  const float found = exact < kLeastScale ? kLeastScale : exact;  // NaN stays
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *scale = found;
  return 1 / found;
}

template <Float8 kType>
__global__ void __launch_bounds__(kThreads) to_float8_kernel(const __grid_constant__ ToFloat8 a) {
  __shared__ alignas(16) uint32_t tile[kTile * kTileWords];
  const float factor = a.largest == nullptr ? 1 / *a.scale : factor_of<kType>(a.largest, a.scale);
  Loaded loaded[kTile / kStep];
#pragma unroll
  for (int step = 0; step < kTile / kStep; ++step)
    load_rows(a.x, a.stride, a.height, a.width, Place(step), loaded[step]);
#pragma unroll
  for (int step = 0; step < kTile / kStep; ++step) {
    const Place place(step);
    uint2 bytes[kDown];
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      float values[kVector];
      unpack(loaded[step][i], values);
#pragma unroll
      for (float& value : values) value *= factor;
      bytes[i] = bytes_of<kType>(values);
      if (a.rows != nullptr) put_row(bytes[i], a.rows, a.width, a.height, a.width, place, i);
    }
    if (a.columns != nullptr) put_in_tile(bytes, tile, place);
  }
  if (a.columns == nullptr) return;
  __syncthreads();
  store_columns(tile, a.columns, a.width, a.padded_height);
}

// As where 16 bits lie between.
__device__ float rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

// So many blocks that their shared memory is a multiprocessor's.
__global__ void __launch_bounds__(kThreads, 4)
    swiglu_to_float8_kernel(const __grid_constant__ SwigluToFloat8 args) {
  __shared__ alignas(16) uint32_t tiles[3][kTile * kTileWords];  // of da, db, y
  constexpr auto kType = Float8::kE5M2;
  const float factor = factor_of<kType>(args.largest, args.scale), y_factor = 1 / *args.y_scale;
#pragma unroll
  for (int step = 0; step < kTile / kStep; ++step) {
    const Place place(step);
    Loaded of_a, of_b, of_dy;
    load_rows(args.a, args.stride, args.height, args.width, place, of_a);
    load_rows(args.b, args.stride, args.height, args.width, place, of_b);
    load_rows(args.dy, args.width, args.height, args.width, place, of_dy);
    uint2 da_bytes[kDown], db_bytes[kDown], y_bytes[kDown];
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      float da[kVector], db[kVector], dy[kVector], y[kVector];
      unpack(of_a[i], da);
      unpack(of_b[i], db);
      unpack(of_dy[i], dy);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        swiglu_backward_element<__nv_bfloat16>(dy[j], da[j], db[j], y[j]);
        da[j] = rounded(da[j]) * factor;
        db[j] = rounded(db[j]) * factor;
        y[j] = rounded(y[j]) * y_factor;
      }
      da_bytes[i] = bytes_of<kType>(da);
      db_bytes[i] = bytes_of<kType>(db);
      y_bytes[i] = bytes_of<Float8::kE4M3>(y);
      put_row(da_bytes[i], args.rows, 2 * args.width, args.height, args.width, place, i);
      put_row(db_bytes[i], static_cast<uint8_t*>(args.rows) + args.width, 2 * args.width,
              args.height, args.width, place, i);
    }
    put_in_tile(da_bytes, tiles[0], place);
    put_in_tile(db_bytes, tiles[1], place);
    put_in_tile(y_bytes, tiles[2], place);
  }
  __syncthreads();
  store_columns(tiles[0], args.columns, args.width, args.padded_height);
  store_columns(tiles[1], static_cast<uint8_t*>(args.columns) + args.width * args.padded_height,
                args.width, args.padded_height);
  store_columns(tiles[2], args.y_columns, args.width, args.padded_height);
}

dim3 tiles_of(int64_t height, int64_t width) {
  return {static_cast<unsigned>(divide_up(width, kTile)),
          static_cast<unsigned>(divide_up(height, kTile))};
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
  const auto kernel =
      a.type == Float8::kE4M3 ? to_float8_kernel<Float8::kE4M3> : to_float8_kernel<Float8::kE5M2>;
  kernel<<<tiles_of(a.height, a.width), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t swiglu_to_float8(const SwigluToFloat8& a, cudaStream_t stream) {
  if (a.height == 0 || a.width == 0) return cudaSuccess;
  swiglu_to_float8_kernel<<<tiles_of(a.height, a.width), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace flashstep::ops_cuda
