#include "flashstep/measure/bandwidth.h"

namespace flashstep::measure {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocksPerMultiprocessor = 4;  // 2048 threads: all that a multiprocessor holds
constexpr int kUnroll = 4;  // loads in flight a thread: 16 B x 4 x 2048 threads cover the latency

__global__ void copy_kernel(float4* __restrict__ destination, const float4* __restrict__ source,
                            int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i + (kUnroll - 1) * stride < count; i += kUnroll * stride) {
    float4 loaded[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) loaded[k] = __ldcs(source + i + k * stride);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) __stcs(destination + i + k * stride, loaded[k]);
  }
  for (; i < count; i += stride) __stcs(destination + i, __ldcs(source + i));
}

__device__ uint32_t bits_of(float4 v) {
  return __float_as_uint(v.x) | __float_as_uint(v.y) | __float_as_uint(v.z) | __float_as_uint(v.w);
}

__global__ void read_kernel(const float4* __restrict__ source, float4* sink, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  uint32_t bits = 1;  // counts up: 0 again only after 2^32 loads of one thread, 2 PB in all
  for (; i + (kUnroll - 1) * stride < count; i += kUnroll * stride) {
    float4 loaded[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) loaded[k] = __ldcs(source + i + k * stride);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) bits += bits_of(loaded[k]) & 1;
  }
  for (; i < count; i += stride) bits += bits_of(__ldcs(source + i)) & 1;
  if (bits == 0) *sink = make_float4(0, 0, 0, 0);
}

}  // namespace

cudaError_t launch_copy(void* destination, const void* source, int64_t count, int multiprocessors,
                        cudaStream_t stream) {
  copy_kernel<<<multiprocessors * kBlocksPerMultiprocessor, kThreads, 0, stream>>>(
      static_cast<float4*>(destination), static_cast<const float4*>(source), count);
  return cudaGetLastError();
}

cudaError_t launch_read(const void* source, void* sink, int64_t count, int multiprocessors,
                        cudaStream_t stream) {
  read_kernel<<<multiprocessors * kBlocksPerMultiprocessor, kThreads, 0, stream>>>(
      static_cast<const float4*>(source), static_cast<float4*>(sink), count);
  return cudaGetLastError();
}

}  // namespace flashstep::measure
