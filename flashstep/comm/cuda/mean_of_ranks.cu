// Bound by memory: every element is read once from each rank's copy and written once.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "flashstep/comm/cuda/mean_of_ranks.h"

namespace flashstep {
namespace {

constexpr int kThreads = 256;
constexpr int kVectorBytes = 16;
constexpr int kVectorsPerThread = 4;
constexpr int kBlockBytes = kThreads * kVectorBytes * kVectorsPerThread;

template <typename T>
struct Sum {
  using Type = float;
};
template <>
struct Sum<double> {
  using Type = double;
};

template <typename T>
__device__ const T* memory_of(const MeanArguments& args, const MeanPiece& piece, int rank) {
  if (rank == args.rank) return static_cast<const T*>(piece.own);
  return reinterpret_cast<const T*>(args.received + (rank - (rank > args.rank)) * args.stride +
                                    piece.place);
}

// Elements [begin, end) one by one, where memory is not aligned or a vector is not full. Returns
// the sum of this thread's squares.
template <typename T, typename M>
__device__ double mean_of_elements(const MeanArguments& args, const MeanPiece& piece, int64_t begin,
                                   int64_t end) {
  using S = typename Sum<T>::Type;
  const S share = S(1) / static_cast<S>(args.world_size);
  double squares = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    S sum = 0;
    for (int rank = 0; rank < args.world_size; ++rank)
      sum += static_cast<S>(memory_of<T>(args, piece, rank)[i]);
    const M mean = static_cast<M>(sum * share);
    static_cast<M*>(piece.mean)[i] = mean;
    squares += static_cast<double>(static_cast<S>(mean) * static_cast<S>(mean));
  }
  return squares;
}

template <typename T, typename M>
__device__ double mean_of_vector(const MeanArguments& args, const MeanPiece& piece, int64_t i) {
  using S = typename Sum<T>::Type;
  constexpr int kElements = kVectorBytes / sizeof(T);
  union Vector {
    uint4 bits;
    T elements[kElements];
    __device__ Vector() {}
  };
  union Mean {
    uint4 bits[sizeof(M) / sizeof(T)];
    M elements[kElements];
    __device__ Mean() {}
  };
  const S share = S(1) / static_cast<S>(args.world_size);
  S sums[kElements] = {};
  for (int rank = 0; rank < args.world_size; ++rank) {
    Vector from;
    from.bits = __ldcs(reinterpret_cast<const uint4*>(memory_of<T>(args, piece, rank)) + i);
#pragma unroll
    for (int k = 0; k < kElements; ++k) sums[k] += static_cast<S>(from.elements[k]);
  }
  Mean mean;
  S squares = 0;
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    mean.elements[k] = static_cast<M>(sums[k] * share);
    const S rounded = static_cast<S>(mean.elements[k]);
    squares = fma(rounded, rounded, squares);
  }
  constexpr int kVectors = sizeof(M) / sizeof(T);
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    static_cast<uint4*>(piece.mean)[i * kVectors + v] = mean.bits[v];
  return static_cast<double>(squares);
}

// Of all threads of a block, in the first one.
__device__ double sum_of_block(double value) {
  constexpr int kWarp = 32, kWarps = kThreads / kWarp;
  __shared__ double sums[kWarps];
  const auto of_warp = [](double v) {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2)
      v += __shfl_down_sync(0xffffffffU, v, distance);
    return v;
  };
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  value = of_warp(value);
  if (lane == 0) sums[warp] = value;
  __syncthreads();
  return warp == 0 ? of_warp(lane < kWarps ? sums[lane] : 0.0) : 0.0;
}

template <typename T, typename M>
__device__ double mean_of_block(const MeanArguments& args, const MeanPiece& piece, int number) {
  constexpr int64_t kBlockElements = kBlockBytes / sizeof(T);
  const int64_t begin = number * kBlockElements;
  const int64_t end = min(begin + kBlockElements, piece.numel);
  const auto places =
      reinterpret_cast<uintptr_t>(piece.own) | reinterpret_cast<uintptr_t>(piece.mean);
  if (places % kVectorBytes != 0) return mean_of_elements<T, M>(args, piece, begin, end);
  constexpr int64_t kElements = kVectorBytes / sizeof(T);
  double squares = 0;
#pragma unroll
  for (int step = 0; step < kVectorsPerThread; ++step) {
    const int64_t i = begin / kElements + step * kThreads + threadIdx.x;
    if ((i + 1) * kElements <= end) squares += mean_of_vector<T, M>(args, piece, i);
  }
  return squares + mean_of_elements<T, M>(args, piece, end / kElements * kElements, end);
}

template <typename T, typename M>
__global__ void __launch_bounds__(kThreads)
    mean_of_ranks_kernel(const __grid_constant__ MeanArguments args) {
  const int block = static_cast<int>(blockIdx.x);
  int low = 0, high = args.count;  // the last piece that begins at or before this block
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (args.first_block[middle] <= block ? low : high) = middle;
  }
  const double squares = mean_of_block<T, M>(args, args.pieces[low], block - args.first_block[low]);
  if (args.squares.sum == nullptr) return;
  const double of_block = sum_of_block(squares);
  if (threadIdx.x == 0) args.squares.of_blocks[blockIdx.x] = of_block;
}

__global__ void __launch_bounds__(kThreads) add_squares_kernel(SquareSum squares, int blocks) {
  double of_thread = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < blocks; i += kThreads) of_thread += squares.of_blocks[i];
  const double sum = sum_of_block(of_thread);
  if (threadIdx.x == 0) *squares.sum = squares.is_first ? sum : *squares.sum + sum;
}

template <typename T, typename M = T>
cudaError_t launch(MeanArguments& args, cudaStream_t stream) {
  constexpr int64_t kBlockElements = kBlockBytes / sizeof(T);
  int64_t blocks = 0;
  for (int i = 0; i < args.count; ++i) {
    args.first_block[i] = static_cast<int>(blocks);
    blocks += (args.pieces[i].numel + kBlockElements - 1) / kBlockElements;
  }
  if (blocks == 0) return cudaSuccess;
  mean_of_ranks_kernel<T, M><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  if (args.squares.sum != nullptr)
    add_squares_kernel<<<1, kThreads, 0, stream>>>(args.squares, static_cast<int>(blocks));
  return cudaGetLastError();
}

}  // namespace

int64_t mean_of_ranks_blocks(int64_t bytes, int64_t pieces) { return bytes / kBlockBytes + pieces; }

cudaError_t launch_mean_of_ranks(MeanArguments arguments, MeanElement element, cudaStream_t stream,
                                 bool to_float32) {
  switch (element) {
    case MeanElement::kFloat32:
      return launch<float>(arguments, stream);
    case MeanElement::kFloat64:
      return launch<double>(arguments, stream);
    case MeanElement::kFloat16:
      return to_float32 ? launch<__half, float>(arguments, stream)
                        : launch<__half>(arguments, stream);
    case MeanElement::kBFloat16:
      return to_float32 ? launch<__nv_bfloat16, float>(arguments, stream)
                        : launch<__nv_bfloat16>(arguments, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace flashstep
