// Bound by memory: every element is read and written once, the tables come from L2.
#include "flashstep/ops/cuda/kernels.h"
#include "flashstep/ops/cuda/vector.cuh"

namespace flashstep::ops_cuda {
namespace {

constexpr int kThreads = 256;

// A thread takes kWidth neighbours of a row: eight, or one pair. Index: 32 bits where they suffice,
// because three divisions of 64 bits take longer than the memory does.
template <typename T, int kWidth, typename Index>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(const __grid_constant__ Rope a, Index count) {
  const Index index = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const auto parts = static_cast<Index>(a.head_dim / kWidth);
  const auto heads = static_cast<Index>(a.heads), positions = static_cast<Index>(a.positions);
  const Index row = index / parts;
  const auto place = static_cast<int64_t>(index - row * parts) * kWidth;
  const Index outer = row / heads;
  const auto head = static_cast<int64_t>(row - outer * heads);
  const auto batch = static_cast<int64_t>(outer / positions);
  const auto position = static_cast<int64_t>(outer % positions);

  const int64_t angle = position * (a.head_dim / 2) + place / 2;
  float cos[kWidth / 2], sin[kWidth / 2], x[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    cos[i] = a.cos[angle + i];
    sin[i] = a.inverse ? -a.sin[angle + i] : a.sin[angle + i];
  }
  read(static_cast<const T*>(a.x) + batch * a.batch_stride + head * a.head_stride +
           position * a.position_stride + place,
       x);
#pragma unroll
  for (int i = 0; i < kWidth; i += 2) {
    const float even = x[i], odd = x[i + 1];
    x[i] = cos[i / 2] * even - sin[i / 2] * odd;
    x[i + 1] = sin[i / 2] * even + cos[i / 2] * odd;
  }
  write(static_cast<T*>(a.y) + batch * a.y_batch_stride + head * a.y_head_stride +
            position * a.y_position_stride + place,
        x);
}

template <typename T, int kWidth>
void launch(const Rope& a, cudaStream_t stream) {
  const int64_t count = a.batch * a.heads * a.positions * (a.head_dim / kWidth);
  const auto blocks = static_cast<unsigned>(divide_up(count, kThreads));
  if (count + kThreads <= UINT32_MAX) {
    rope_kernel<T, kWidth><<<blocks, kThreads, 0, stream>>>(a, static_cast<uint32_t>(count));
  } else {
    rope_kernel<T, kWidth><<<blocks, kThreads, 0, stream>>>(a, count);
  }
}

bool takes_vectors(const Rope& a) {
  for (const int64_t stride : {a.head_dim, a.batch_stride, a.head_stride, a.position_stride,
                               a.y_batch_stride, a.y_head_stride, a.y_position_stride}) {
    if (stride % kVector != 0) return false;
  }
  return is_aligned(a.x) && is_aligned(a.y);
}

}  // namespace

cudaError_t rope(const Rope& a, cudaStream_t stream) {
  if (a.batch * a.heads * a.positions * a.head_dim == 0) return cudaSuccess;
  return with_type(a.type, [&](auto type) {
    takes_vectors(a) ? launch<decltype(type), kVector>(a, stream)
                     : launch<decltype(type), 2>(a, stream);
    return cudaGetLastError();
  });
}

}  // namespace flashstep::ops_cuda
