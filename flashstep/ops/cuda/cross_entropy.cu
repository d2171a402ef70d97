// Bound by memory: a row of logits is read once, into the registers of a block (up to 65,536
// classes of a 16-bit dtype), and its gradient written once. Longer rows are read three times,
// mostly from L2; rows that are not aligned go element by element.
#include <cmath>
#include <type_traits>

#include "flashstep/ops/cuda/kernels.h"
#include "flashstep/ops/cuda/vector.cuh"

namespace flashstep::ops_cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpLanes;

// The fast exponential is exact enough for what is rounded to 16 bits.
template <typename T>
__device__ float exponential(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return __expf(x);
  }
}

// Of one row: the loss, once the largest logit and the sum of exponentials are known.
__device__ void finish_row(const CrossEntropy& a, int64_t row, float lse, float target_logit) {
  if (threadIdx.x != 0) return;
  a.losses[row] = lse - target_logit;
  if (a.lse != nullptr) a.lse[row] = lse;
}

template <typename T>
__device__ float logit_of_target(const CrossEntropy& a, int64_t row, const T* logits) {
  const int64_t target = a.targets[row];
  return target >= 0 && target < a.classes ? static_cast<float>(logits[target]) : NAN;
}

// A row in registers: kSteps vectors a thread.
template <typename T, int kSteps>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(const __grid_constant__ CrossEntropy a) {
  __shared__ float shared[2][kWarps];
  const int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(a.logits) + row * a.classes;
  const int vectors = static_cast<int>(a.classes / kVector);
  // Before the first barrier: dlogits may be logits.
  const float target_logit = logit_of_target(a, row, logits);

  Packed<T> own[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int v = static_cast<int>(threadIdx.x) + step * kThreads;
    if (v < vectors) own[step] = load(logits + v * kVector);
  }
  float largest = -INFINITY;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (static_cast<int>(threadIdx.x) + step * kThreads >= vectors) break;
    float x[kVector];
    unpack(own[step], x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) largest = fmaxf(largest, x[i]);
  }
  largest = block_max<kWarps>(largest, shared[0]);
  float sum = 0;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (static_cast<int>(threadIdx.x) + step * kThreads >= vectors) break;
    float x[kVector];
    unpack(own[step], x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += exponential<T>(x[i] - largest);
  }
  sum = block_sum<kWarps>(sum, shared[1]);
  const float lse = largest + logf(sum);
  finish_row(a, row, lse, target_logit);
  if (a.dlogits == nullptr) return;

  T* dlogits = static_cast<T*>(a.dlogits) + row * a.classes;
  const int64_t target = a.targets[row];
  const float share = a.scale / sum;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int v = static_cast<int>(threadIdx.x) + step * kThreads;
    if (v >= vectors) break;
    float x[kVector];
    unpack(own[step], x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      x[i] = exponential<T>(x[i] - largest) * share;
      if (v * kVector + i == target) x[i] -= a.scale;
    }
    write(dlogits + v * kVector, x);
  }
}

// Any width and address.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_elements_kernel(const __grid_constant__ CrossEntropy a) {
  __shared__ float shared[2][kWarps];
  const int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(a.logits) + row * a.classes;
  const float target_logit = logit_of_target(a, row, logits);
  float largest = -INFINITY, sum = 0;
  for (int64_t i = threadIdx.x; i < a.classes; i += kThreads)
    largest = fmaxf(largest, static_cast<float>(logits[i]));
  largest = block_max<kWarps>(largest, shared[0]);
  for (int64_t i = threadIdx.x; i < a.classes; i += kThreads)
    sum += exponential<T>(static_cast<float>(logits[i]) - largest);
  sum = block_sum<kWarps>(sum, shared[1]);
  finish_row(a, row, largest + logf(sum), target_logit);
  if (a.dlogits == nullptr) return;
  T* dlogits = static_cast<T*>(a.dlogits) + row * a.classes;
  const int64_t target = a.targets[row];
  const float share = a.scale / sum;
  for (int64_t i = threadIdx.x; i < a.classes; i += kThreads) {
    const float probability = exponential<T>(static_cast<float>(logits[i]) - largest) * share;
    dlogits[i] = static_cast<T>(i == target ? probability - a.scale : probability);
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const __grid_constant__ CrossEntropyBackward a) {
  const int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(a.logits) + row * a.classes;
  T* dlogits = static_cast<T*>(a.dlogits) + row * a.classes;
  const float lse = a.lse[row], scale = a.scale * *a.factor;
  const int64_t target = a.targets[row];
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * kWidth; i < a.classes;
       i += kThreads * kWidth) {
    float x[kWidth];
    read(logits + i, x);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      x[k] = exponential<T>(x[k] - lse) * scale;
      if (i + k == target) x[k] -= scale;
    }
    write(dlogits + i, x);
  }
}

constexpr int kMeanThreads = 1024;
__global__ void __launch_bounds__(kMeanThreads)
    mean_kernel(const float* values, int64_t count, float* mean) {
  __shared__ double shared[kMeanThreads];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kMeanThreads) sum += values[i];
  shared[threadIdx.x] = sum;
  for (int half = kMeanThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *mean = static_cast<float>(shared[0] / static_cast<double>(count));
}

template <typename T>
void launch(const CrossEntropy& a, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(a.rows);
  const bool aligned = a.classes % kVector == 0 && is_aligned(a.logits) && is_aligned(a.dlogits);
  const auto with_steps = [&](auto steps) {
    cross_entropy_kernel<T, decltype(steps)::value><<<rows, kThreads, 0, stream>>>(a);
  };
  constexpr int64_t kElements = int64_t{kThreads} * kVector;  // of a step: 4,096
  // 64 registers of logits: what leaves two blocks on a multiprocessor.
  constexpr int kMostSteps = sizeof(T) == 2 ? 16 : 8;
  if (!aligned || a.classes > kMostSteps * kElements) {
    cross_entropy_elements_kernel<T><<<rows, kThreads, 0, stream>>>(a);
  } else if (a.classes <= kElements) {
    with_steps(std::integral_constant<int, 1>());
  } else if (a.classes <= 3 * kElements) {
    with_steps(std::integral_constant<int, 3>());
  } else if (a.classes <= 8 * kElements) {
    with_steps(std::integral_constant<int, 8>());
  } else {
    with_steps(std::integral_constant<int, kMostSteps>());
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
    aligned ? backward_kernel<T, kVector><<<rows, kThreads, 0, stream>>>(a)
            : backward_kernel<T, 1><<<rows, kThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

cudaError_t mean(const float* values, int64_t count, float* result, cudaStream_t stream) {
  mean_kernel<<<1, kMeanThreads, 0, stream>>>(values, count, result);
  return cudaGetLastError();
}

}  // namespace flashstep::ops_cuda
