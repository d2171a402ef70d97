// Eight neighbouring elements: what a thread loads, computes in float32 and stores at once. 16
// bytes of a 16-bit dtype, so that a warp's loads are as wide as the hardware takes them.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace flashstep::ops_cuda {

constexpr int kVector = 8;
constexpr int kAlignmentBytes = 16;
constexpr int kWarpLanes = 32;

template <typename T>
struct Packed {
  uint4 words[sizeof(T) * kVector / sizeof(uint4)];
};

// `p` is a multiple of 16 bytes.
template <typename T>
__device__ inline Packed<T> load(const T* p) {
  Packed<T> v;
#pragma unroll
  for (size_t i = 0; i < sizeof(v) / sizeof(uint4); ++i)
    v.words[i] = reinterpret_cast<const uint4*>(p)[i];
  return v;
}

template <typename T>
__device__ inline void store(T* p, const Packed<T>& v) {
#pragma unroll
  for (size_t i = 0; i < sizeof(v) / sizeof(uint4); ++i)
    reinterpret_cast<uint4*>(p)[i] = v.words[i];
}

__device__ inline void unpack(const Packed<float>& v, float (&x)[kVector]) {
  const float* elements = reinterpret_cast<const float*>(v.words);
#pragma unroll
  for (int i = 0; i < kVector; ++i) x[i] = elements[i];
}
__device__ inline void unpack(const Packed<__nv_bfloat16>& v, float (&x)[kVector]) {
  const uint32_t* pairs = reinterpret_cast<const uint32_t*>(v.words);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {  // a bfloat16 is the upper half of a float32
    x[2 * i] = __uint_as_float(pairs[i] << 16);
    x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
  }
}
__device__ inline void unpack(const Packed<__half>& v, float (&x)[kVector]) {
  const __half2* pairs = reinterpret_cast<const __half2*>(v.words);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const float2 pair = __half22float2(pairs[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

__device__ inline void pack(const float (&x)[kVector], Packed<float>& v) {
  float* elements = reinterpret_cast<float*>(v.words);
#pragma unroll
  for (int i = 0; i < kVector; ++i) elements[i] = x[i];
}
__device__ inline void pack(const float (&x)[kVector], Packed<__nv_bfloat16>& v) {
  __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(v.words);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) pairs[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
}
__device__ inline void pack(const float (&x)[kVector], Packed<__half>& v) {
  __half2* pairs = reinterpret_cast<__half2*>(v.words);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) pairs[i] = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
}

// One to eight elements at `p`, the rest zero: the way of a thread that has a whole vector and of
// one whose memory is not aligned.
template <int kWidth, typename T>
__device__ inline void read(const T* p, float (&x)[kWidth]) {
  if constexpr (kWidth == kVector) {
    unpack(load(p), x);
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] = static_cast<float>(p[i]);
  }
}

template <int kWidth, typename T>
__device__ inline void write(T* p, const float (&x)[kWidth]) {
  if constexpr (kWidth == kVector) {
    Packed<T> v;
    pack(x, v);
    store(p, v);
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) p[i] = static_cast<T>(x[i]);
  }
}

// The same sum on all lanes; the order is that of a butterfly and never changes.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int step = kWarpLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// Over a block of kWarps warps. `shared` holds kWarps floats and may be used again after the next
// __syncthreads().
template <int kWarps>
__device__ inline float block_sum(float x, float* shared) {
  x = warp_sum(x);
  if constexpr (kWarps == 1) return x;
  if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += shared[warp];
  return sum;
}

// ---- The largest magnitude of what a kernel writes, in *largest, which was 0. Bits of a float32
// without its sign are in the numbers' order, NaN behind all.

template <int kWidth>
__device__ inline uint32_t larger(uint32_t bits, const float (&x)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) bits = max(bits, __float_as_uint(x[i]) & 0x7fffffffu);
  return bits;
}

// All threads of a block of kWarps warps call it; `shared` holds kWarps words. Few blocks find a
// larger one, and all of them looking costs less than all writing.
template <int kWarps>
__device__ inline void raise_largest(float* largest, uint32_t bits, uint32_t* shared) {
  bits = __reduce_max_sync(~0u, bits);
  if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = bits;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) bits = max(bits, shared[warp]);
  auto* const found = reinterpret_cast<uint32_t*>(largest);
  if (bits > __ldcg(found)) atomicMax(found, bits);
}

// ---- Host

inline bool is_aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % kAlignmentBytes == 0;
}
inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Calls work(T()) with the C++ type of `element`, an Element.
template <typename Element, typename Work>
auto with_type(Element element, const Work& work) {
  switch (element) {
    case Element::kBfloat16:
      return work(__nv_bfloat16());
    case Element::kFloat16:
      return work(__half());
    default:
      return work(float());
  }
}

}  // namespace flashstep::ops_cuda
