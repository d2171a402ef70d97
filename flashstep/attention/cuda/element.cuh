// What the kernels must know of a dtype: its type, its conversions and its matrix instruction.
#pragma once

#include <cstdint>

#include "flashstep/attention/cuda/ptx.cuh"
#include "flashstep/attention/problem.h"

namespace flashstep::attention_cuda {

using attention_kernel::Element;

constexpr int element_bytes(Element element) { return element == Element::kFloat32 ? 4 : 2; }

// pack: two float32 to the dtype, in one register (16-bit dtypes).
// store_pair: two neighbours of a row, rounded to the dtype; the address is a multiple of their
// size.
template <Element kElement>
struct ElementTraits;

template <>
struct ElementTraits<Element::kBfloat16> {
  __device__ static uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  __device__ static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_m16n8k16_bf16(c, a, b0, b1);
  }
  __device__ static void store_pair(void* address, float low, float high) {
    *static_cast<uint32_t*>(address) = pack(low, high);
  }
  __device__ static float2 unpack(uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }
};

template <>
struct ElementTraits<Element::kFloat16> {
  __device__ static uint32_t pack(float low, float high) { return pack_f16(low, high); }
  __device__ static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_m16n8k16_f16(c, a, b0, b1);
  }
  __device__ static void store_pair(void* address, float low, float high) {
    *static_cast<uint32_t*>(address) = pack(low, high);
  }
  __device__ static float2 unpack(uint32_t pair) { return unpack_f16(pair); }
};

template <>
struct ElementTraits<Element::kFloat32> {
  __device__ static void store_pair(void* address, float low, float high) {
    *static_cast<float2*>(address) = make_float2(low, high);
  }
};

}  // namespace flashstep::attention_cuda
