// Walking over lists of tensors: which one a block has, its elements' type, and several elements in
// one access.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

// Whether `memory` can be accessed by words of so many bytes.
__device__ inline bool is_aligned(const void* memory, int bytes) {
  return reinterpret_cast<uintptr_t>(memory) % bytes == 0;
}

}  // namespace flashstep::multi_tensor
