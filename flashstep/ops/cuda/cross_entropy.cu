// Bound by memory: a row of logits is read once, into the registers of a block (up to 65,536
// classes of a 16-bit dtype), and its gradient written once. Longer rows are read twice; rows that
// are not aligned go element by element.
#include <cmath>
#include <type_traits>

#include "flashstep/ops/cuda/kernels.h"
#include "flashstep/ops/cuda/vector.cuh"

namespace flashstep::ops_cuda {
namespace {

constexpr int kThreads = 256;

// The fast exponential is exact enough for what is rounded to 16 bits.
template <typename T>
__device__ float exponential(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return __expf(x);
  }
}

// The largest of some logits, and the sum of exp(logit - largest).
struct Sum {
  float largest, sum;
};
// What a thread's exponents are relative to. -inf - -inf would be NaN where exp(-inf) is 0.
__device__ float base_of(float largest) { return largest == -INFINITY ? 0.0f : largest; }

template <typename T>
__device__ Sum merged(Sum a, Sum b) {
  const float largest = fmaxf(a.largest, b.largest);
  const auto share = [&](Sum part) {
    return part.largest == largest ? part.sum : part.sum * exponential<T>(part.largest - largest);
  };
  return {largest, share(a) + share(b)};
}

// Over the block, the same on all threads; the order of additions never changes.
template <typename T, int kWarps>
__device__ Sum block_merged(Sum own, Sum* shared) {
#pragma unroll
  for (int step = kWarpLanes / 2; step > 0; step /= 2) {
    own = merged<T>(own,
                    {__shfl_xor_sync(~0u, own.largest, step), __shfl_xor_sync(~0u, own.sum, step)});
  }
  if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = own;
  __syncthreads();
  Sum all = shared[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) all = merged<T>(all, shared[warp]);
  return all;
}

template <typename T>
__device__ float logit_of_target(const CrossEntropy& a, int64_t row, const T* logits) {
  const int64_t target = a.targets[row];
  return target >= 0 && target < a.classes ? static_cast<float>(logits[target]) : NAN;
}

// All that there is to do of a row with an ignored target.
template <typename T>
__device__ void skip_row(const CrossEntropy& a, int64_t row) {
  if (threadIdx.x == 0) {
    a.losses[row] = 0;
    if (a.normalizers != nullptr) a.normalizers[2 * row] = a.normalizers[2 * row + 1] = 0;
  }
  if (a.dlogits == nullptr) return;
  T* dlogits = static_cast<T*>(a.dlogits) + row * a.stride;
  for (int64_t i = threadIdx.x; i < a.stride; i += blockDim.x) dlogits[i] = T(0.0f);
}

__device__ void finish_row(const CrossEntropy& a, int64_t row, Sum all, float target_logit) {
  if (threadIdx.x != 0) return;
  const float log_sum = logf(all.sum);
  a.losses[row] = all.largest - target_logit + log_sum;
  if (a.normalizers != nullptr) {
    a.normalizers[2 * row] = all.largest;
    a.normalizers[2 * row + 1] = log_sum;
  }
}

// Elements from number `begin` on count for nothing.
template <typename T>
__device__ void hide_from(int64_t begin, Packed<T>& v) {
  float x[kVector];
  unpack(v, x);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (i >= begin) x[i] = -INFINITY;
  }
  pack(x, v);
}

// A row in registers: kSteps vectors a thread. With few of them their exponentials stay, for the
// gradient, because the special function units bound what computes each of them twice.
template <typename T, int kBlock, int kSteps>
__global__ void __launch_bounds__(kBlock)
    cross_entropy_kernel(const __grid_constant__ CrossEntropy a) {
  constexpr bool kKeepsExponentials = kSteps <= 8;
  __shared__ Sum shared[kBlock / kWarpLanes];
  const int64_t row = blockIdx.x;
  if (a.targets[row] == kIgnored) return skip_row<T>(a, row);
  const T* logits = static_cast<const T*>(a.logits) + row * a.stride;
  const int vectors = static_cast<int>((a.classes + kVector - 1) / kVector);
  Packed<T> own[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int v = static_cast<int>(threadIdx.x) + step * kBlock;
    if (v < vectors) own[step] = load(logits + v * kVector);
    if ((v + 1) * kVector > a.classes && v < vectors) hide_from(a.classes - v * kVector, own[step]);
  }
  // Before the barrier: dlogits may be logits.
  const float target_logit = logit_of_target(a, row, logits);

  float exponentials[kKeepsExponentials ? kSteps : 1][kVector];
  Sum mine = {-INFINITY, 0};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (static_cast<int>(threadIdx.x) + step * kBlock >= vectors) break;
    float x[kVector];
    unpack(own[step], x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) mine.largest = fmaxf(mine.largest, x[i]);
  }
  const float base = base_of(mine.largest);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (static_cast<int>(threadIdx.x) + step * kBlock >= vectors) break;
    float x[kVector];
    unpack(own[step], x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      x[i] = exponential<T>(x[i] - base);
      mine.sum += x[i];
      if constexpr (kKeepsExponentials) exponentials[step][i] = x[i];
    }
  }
  const Sum all = block_merged<T, kBlock / kWarpLanes>(mine, shared);
  finish_row(a, row, all, target_logit);
  if (a.dlogits == nullptr) return;

  T* dlogits = static_cast<T*>(a.dlogits) + row * a.stride;
  const int64_t target = a.targets[row];
  const float scale = 1.0f / *a.counted;
  const float share =
      scale / all.sum * (kKeepsExponentials ? exponential<T>(base - all.largest) : 1.0f);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int v = static_cast<int>(threadIdx.x) + step * kBlock;
    if (v >= vectors) break;
    float x[kVector];
    if constexpr (!kKeepsExponentials) unpack(own[step], x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if constexpr (kKeepsExponentials) {
        x[i] = exponentials[step][i] * share;
      } else {
        x[i] = exponential<T>(x[i] - all.largest) * share;
      }
      if (v * kVector + i == target) x[i] -= scale;
    }
    write(dlogits + v * kVector, x);
  }
}

// Any number of classes, and with kWidth 1 any address: a row is read twice.
template <typename T, int kWidth>
__global__ void __launch_bounds__(2 * kThreads)
    cross_entropy_long_kernel(const __grid_constant__ CrossEntropy a) {
  constexpr int kBlock = 2 * kThreads;
  __shared__ Sum shared[kBlock / kWarpLanes];
  const int64_t row = blockIdx.x;
  if (a.targets[row] == kIgnored) return skip_row<T>(a, row);
  const T* logits = static_cast<const T*>(a.logits) + row * a.stride;
  const float target_logit = logit_of_target(a, row, logits);
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kWidth;
  const auto read_known = [&](int64_t i, float(&x)[kWidth]) {
    read(logits + i, x);
    if (i + kWidth <= a.classes) return;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      if (i + k >= a.classes) x[k] = -INFINITY;
    }
  };
  Sum mine = {-INFINITY, 0};
#pragma unroll 2
  for (int64_t i = first; i < a.classes; i += kBlock * kWidth) {
    float x[kWidth];
    read_known(i, x);
    float largest = mine.largest;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) largest = fmaxf(largest, x[k]);
    const float base = base_of(largest);
    if (largest > mine.largest) mine.sum *= exponential<T>(mine.largest - base);
    mine.largest = largest;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) mine.sum += exponential<T>(x[k] - base);
  }
  const Sum all = block_merged<T, kBlock / kWarpLanes>(mine, shared);
  finish_row(a, row, all, target_logit);
  if (a.dlogits == nullptr) return;
  T* dlogits = static_cast<T*>(a.dlogits) + row * a.stride;
  const int64_t target = a.targets[row];
  const float scale = 1.0f / *a.counted, share = scale / all.sum;
#pragma unroll 2
  for (int64_t i = first; i < a.classes; i += kBlock * kWidth) {
    float x[kWidth];
    read_known(i, x);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      x[k] = exponential<T>(x[k] - all.largest) * share;
      if (i + k == target) x[k] -= scale;
    }
    write(dlogits + i, x);
  }
  for (int64_t i = a.classes + threadIdx.x; i < a.stride; i += kBlock) dlogits[i] = T(0.0f);
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_backward_kernel(const __grid_constant__ CrossEntropyBackward a) {
  const int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(a.logits) + row * a.classes;
  T* dlogits = static_cast<T*>(a.dlogits) + row * a.classes;
  const float largest = a.normalizers[2 * row], log_sum = a.normalizers[2 * row + 1];
  const int64_t target = a.targets[row];
  const bool is_ignored = target == kIgnored;
  const float scale = *a.factor / *a.counted;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * kWidth; i < a.classes;
       i += kThreads * kWidth) {
    float x[kWidth];
    read(logits + i, x);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      x[k] = is_ignored ? 0 : exponential<T>(x[k] - largest - log_sum) * scale;
      if (i + k == target) x[k] -= scale;
    }
    write(dlogits + i, x);
  }
}

constexpr int kSumThreads = 1024;
__global__ void __launch_bounds__(kSumThreads)
    cross_entropy_mean_kernel(const float* values, int64_t count, const float* counted,
                              float* mean) {
  __shared__ double shared[kSumThreads];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) sum += values[i];
  shared[threadIdx.x] = sum;
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *mean = static_cast<float>(shared[0] / static_cast<double>(*counted));
}

__global__ void __launch_bounds__(kSumThreads)
    cross_entropy_counted_kernel(const int64_t* targets, int64_t count, float* counted) {
  __shared__ unsigned of_warps[kSumThreads / kWarpLanes];
  unsigned own = 0;
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) own += targets[i] != kIgnored;
  own = __reduce_add_sync(~0u, own);
  if (threadIdx.x % kWarpLanes == 0) of_warps[threadIdx.x / kWarpLanes] = own;
  __syncthreads();
  if (threadIdx.x >= kWarpLanes) return;
  own = __reduce_add_sync(~0u, of_warps[threadIdx.x]);
  if (threadIdx.x == 0) *counted = static_cast<float>(own);
}

template <typename T>
void launch(const CrossEntropy& a, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(a.rows);
  const bool aligned = a.stride % kVector == 0 && is_aligned(a.logits) && is_aligned(a.dlogits);
  const auto with = [&](auto block, auto steps) {
    constexpr int kBlock = decltype(block)::value, kSteps = decltype(steps)::value;
    if (!aligned || a.classes > int64_t{kBlock} * kSteps * kVector) return false;
    cross_entropy_kernel<T, kBlock, kSteps><<<rows, kBlock, 0, stream>>>(a);
    return true;
  };
  const std::integral_constant<int, kThreads> narrow;
  const std::integral_constant<int, 2 * kThreads> wide;
  // 64 registers of logits or exponentials at most.
  const std::integral_constant<int, sizeof(T) == 2 ? 16 : 8> most;
  if (with(narrow, std::integral_constant<int, 2>()) ||
      with(narrow, std::integral_constant<int, 5>()) ||
      with(narrow, std::integral_constant<int, 8>()) ||
      with(wide, std::integral_constant<int, 8>()) || with(wide, most)) {
    return;
  }
  if (aligned) {
    cross_entropy_long_kernel<T, kVector><<<rows, 2 * kThreads, 0, stream>>>(a);
  } else {
    cross_entropy_long_kernel<T, 1><<<rows, 2 * kThreads, 0, stream>>>(a);
  }
}

}  // namespace

cudaError_t cross_entropy(const CrossEntropy& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  return with_type(a.type, [&](auto type) {
    launch<decltype(type)>(a, stream);
    return cudaGetLastError();
  });
}

cudaError_t cross_entropy_backward(const CrossEntropyBackward& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  const bool aligned = a.classes % kVector == 0 && is_aligned(a.logits) && is_aligned(a.dlogits);
  const auto rows = static_cast<unsigned>(a.rows);
  return with_type(a.type, [&](auto type) {
    using T = decltype(type);
    aligned ? cross_entropy_backward_kernel<T, kVector><<<rows, kThreads, 0, stream>>>(a)
            : cross_entropy_backward_kernel<T, 1><<<rows, kThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

cudaError_t cross_entropy_counted(const int64_t* targets, int64_t count, float* counted,
                                  cudaStream_t stream) {
  cross_entropy_counted_kernel<<<1, kSumThreads, 0, stream>>>(targets, count, counted);
  return cudaGetLastError();
}

cudaError_t mean(const float* values, int64_t count, const float* counted, float* result,
                 cudaStream_t stream) {
  cross_entropy_mean_kernel<<<1, kSumThreads, 0, stream>>>(values, count, counted, result);
  return cudaGetLastError();
}

}  // namespace flashstep::ops_cuda
