// Walking over lists of tensors: which one a block has, its elements' type, and several elements in
// one access.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

#include "flashstep/ops/cuda/tensor_table.h"

namespace flashstep::multi_tensor {

// The last piece that begins at or before this block.
template <typename Piece>
__device__ const Piece& piece_of_block(const Piece* pieces, int count) {
  const int block = static_cast<int>(blockIdx.x);
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (pieces[middle].first_block <= block ? low : high) = middle;
  }
  return pieces[low];
}

template <typename T>
struct Type {
  using type = T;
};

// Calls `function` with the Type of the element.
template <typename Function>
__device__ auto with_type(Element element, const Function& function) {
  switch (element) {
    case Element::kBFloat16:
      return function(Type<__nv_bfloat16>());
    case Element::kFloat16:
      return function(Type<__half>());
    case Element::kFloat32:
      break;
  }
  return function(Type<float>());
}

template <int kBytes>
struct Word;
template <>
struct Word<2> {
  using Bits = unsigned short;
};
template <>
struct Word<4> {
  using Bits = unsigned int;
};
template <>
struct Word<8> {
  using Bits = uint2;
};
template <>
struct Word<16> {
  using Bits = uint4;
};

// kWidth elements, read and written by one access.
template <typename T, int kWidth>
union Pack {
  typename Word<sizeof(T) * kWidth>::Bits bits;
  T elements[kWidth];
  __device__ Pack() {}
};

// Upper 16 bits of x after `noise`, of 16 bits, was added to the lower ones: bfloat16, up as often
// as x is far from the one below. What is not finite stays so.
__device__ inline __nv_bfloat16 rounded_by_chance(float x, uint32_t noise) {
  if (!isfinite(x)) return __float2bfloat16_rn(x);
  return __ushort_as_bfloat16(static_cast<unsigned short>((__float_as_uint(x) + noise) >> 16));
}

// `bits` after `step` updates, as a random number.
__device__ inline uint32_t mixed(uint32_t bits, float step) {
  bits += static_cast<uint32_t>(step) * 0x9e3779b9U;
  bits = (bits ^ (bits >> 16)) * 0x85ebca6bU;  // MurmurHash3's finalizer
  bits = (bits ^ (bits >> 13)) * 0xc2b2ae35U;
  return bits ^ (bits >> 16);
}

__device__ inline uint32_t rotated(float x, int bits) {
  return __funnelshift_l(__float_as_uint(x), __float_as_uint(x), bits);
}

// Of gradients whose norm is clipped to max_norm; 1 where `norm` is null. A NaN stays.
__device__ inline float clip_factor(const float* norm, float max_norm) {
  if (norm == nullptr) return 1;
  const float ratio = __fdiv_rn(max_norm, __fadd_rn(*norm, 1e-6F));
  return ratio > 1 ? 1 : ratio;
}

// The updates take the step counts as they are after them. A block for each: threads of one would
// take turns to read the arguments.
template <typename Arguments>
__global__ void advance_steps_kernel(const __grid_constant__ Arguments args) {
  if (args.skip != nullptr && *args.skip == 1) return;
  *args.pieces[blockIdx.x].step += 1;
}

// Nothing is read again before all else has been: caches need not keep it.
template <int kCount, typename T>
__device__ inline Pack<T, kCount> load(const T* memory, int i) {
  Pack<T, kCount> pack;
  pack.bits = __ldcs(reinterpret_cast<const decltype(pack.bits)*>(memory) + i);
  return pack;
}
template <int kCount, typename T>
__device__ inline void store(T* memory, int i, const Pack<T, kCount>& pack) {
  __stcs(reinterpret_cast<std::remove_const_t<decltype(pack.bits)>*>(memory) + i, pack.bits);
}

// Whether `memory` can be accessed by words of so many bytes.
__device__ inline bool is_aligned(const void* memory, int bytes) {
  return reinterpret_cast<uintptr_t>(memory) % bytes == 0;
}

}  // namespace flashstep::multi_tensor
