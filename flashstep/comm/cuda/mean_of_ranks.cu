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

// Elements [begin, end) one by one, where memory is not aligned or a vector is not full.
template <typename T, typename M>
__device__ void mean_of_elements(const MeanArguments& args, const MeanPiece& piece, int64_t begin,
                                 int64_t end) {
  using S = typename Sum<T>::Type;
  const S share = S(1) / static_cast<S>(args.world_size);
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    S sum = 0;
    for (int rank = 0; rank < args.world_size; ++rank)
      sum += static_cast<S>(memory_of<T>(args, piece, rank)[i]);
    static_cast<M*>(piece.mean)[i] = static_cast<M>(sum * share);
  }
}

template <typename T, typename M>
__device__ void mean_of_vector(const MeanArguments& args, const MeanPiece& piece, int64_t i) {
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
#pragma unroll
  for (int k = 0; k < kElements; ++k) mean.elements[k] = static_cast<M>(sums[k] * share);
  constexpr int kVectors = sizeof(M) / sizeof(T);
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    static_cast<uint4*>(piece.mean)[i * kVectors + v] = mean.bits[v];
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
  const MeanPiece& piece = args.pieces[low];
  constexpr int64_t kBlockElements = kBlockBytes / sizeof(T);
  const int64_t begin = (block - args.first_block[low]) * kBlockElements;
  const int64_t end = min(begin + kBlockElements, piece.numel);
  const auto places =
      reinterpret_cast<uintptr_t>(piece.own) | reinterpret_cast<uintptr_t>(piece.mean);
  if (places % kVectorBytes != 0) {
    mean_of_elements<T, M>(args, piece, begin, end);
    return;
  }
  constexpr int64_t kElements = kVectorBytes / sizeof(T);
#pragma unroll
  for (int step = 0; step < kVectorsPerThread; ++step) {
    const int64_t i = begin / kElements + step * kThreads + threadIdx.x;
    if ((i + 1) * kElements <= end) mean_of_vector<T, M>(args, piece, i);
  }
  mean_of_elements<T, M>(args, piece, end / kElements * kElements, end);
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
  return cudaGetLastError();
}

}  // namespace

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
