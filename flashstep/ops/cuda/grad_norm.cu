// Bound by memory: every element is read once. A thread adds the squares of 16 or 32 elements in
// float32, and such sums in float64. Which elements those are follows from their number in the
// tensor: where it lies in memory changes the accesses, not the order of additions.
#include "flashstep/ops/cuda/grad_norm.h"
#include "flashstep/ops/cuda/tensor_table.cuh"

namespace flashstep::multi_tensor {
namespace {

constexpr int kThreads = 256;
constexpr int kVectorBytes = 16;
constexpr int kVectors = 4;  // read by a thread before it adds: 64 bytes on their way
constexpr int kSumThreads = 1024;
constexpr int kWarp = 32;

template <typename T>
using Vector = Pack<T, kVectorBytes / sizeof(T)>;

// Elements from number `first` on, zero behind the end.
template <typename T>
__device__ Vector<T> vector_at(const T* memory, int first, int numel, bool aligned) {
  constexpr int kWidth = kVectorBytes / sizeof(T);
  Vector<T> vector;
  if (aligned && first + kWidth <= numel) {
    vector.bits = *reinterpret_cast<const uint4*>(memory + first);
    return vector;
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k)
    vector.elements[k] = first + k < numel ? memory[first + k] : static_cast<T>(0.0F);
  return vector;
}

template <typename T>
__device__ double square_sum_of_thread(const T* memory, int numel) {
  constexpr int kWidth = kVectorBytes / sizeof(T);
  const bool aligned = is_aligned(memory, kVectorBytes);
  double total = 0;
  for (int first = threadIdx.x * kWidth; first < numel; first += kThreads * kVectors * kWidth) {
    Vector<T> vectors[kVectors];
#pragma unroll
    for (int n = 0; n < kVectors; ++n)
      vectors[n] = vector_at(memory, first + n * kThreads * kWidth, numel, aligned);
    float sums[kVectors] = {};
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
#pragma unroll
      for (int n = 0; n < kVectors; ++n) {
        const float x = static_cast<float>(vectors[n].elements[k]);
        sums[n] = __fmaf_rn(x, x, sums[n]);
      }
    }
    total += static_cast<double>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
  return total;
}

__device__ double sum_of_warp(double value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value += __shfl_down_sync(0xffffffffU, value, distance);
  return value;
}

// The sum over the block's threads, in the first of them.
template <int kBlock>
__device__ double sum_of_block(double value) {
  constexpr int kWarps = kBlock / kWarp;
  __shared__ double sums[kWarps];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  value = sum_of_warp(value);
  if (lane == 0) sums[warp] = value;
  __syncthreads();
  return warp == 0 ? sum_of_warp(lane < kWarps ? sums[lane] : 0.0) : 0.0;
}

__global__ void __launch_bounds__(kThreads)
    square_sums_kernel(const __grid_constant__ NormArguments args) {
  const NormPiece& piece = piece_of_block(args.pieces, args.count);
  const int64_t begin = (static_cast<int>(blockIdx.x) - piece.first_block) * args.chunk;
  const int numel = static_cast<int>(min(args.chunk, piece.numel - begin));
  const double of_thread = with_type(piece.element, [&](auto type) {
    using T = typename decltype(type)::type;
    return square_sum_of_thread(static_cast<const T*>(piece.memory) + begin, numel);
  });
  const double sum = sum_of_block<kThreads>(of_thread);
  if (threadIdx.x == 0) args.sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kSumThreads)
    norm_of_sums_kernel(const double* sums, int64_t count, float* norm) {
  double of_thread = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) of_thread += sums[i];
  const double sum = sum_of_block<kSumThreads>(of_thread);
  if (threadIdx.x == 0) *norm = static_cast<float>(sqrt(sum));
}

}  // namespace

cudaError_t launch_square_sums(NormArguments& arguments, cudaStream_t stream) {
  int64_t blocks = 0;
  for (int i = 0; i < arguments.count; ++i) {
    arguments.pieces[i].first_block = static_cast<int>(blocks);
    blocks += count_chunks(arguments.pieces[i].numel, arguments.chunk);
  }
  if (blocks == 0) return cudaSuccess;
  square_sums_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(arguments);
  return cudaGetLastError();
}

cudaError_t launch_norm_of_sums(const double* sums, int64_t count, float* norm,
                                cudaStream_t stream) {
  norm_of_sums_kernel<<<1, kSumThreads, 0, stream>>>(sums, count, norm);
  return cudaGetLastError();
}

}  // namespace flashstep::multi_tensor
