// Matrices of 8-bit floating-point numbers, and the scale that all numbers of one have. No torch
// headers here.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace flashstep::ops_cuda {

// *largest = max(*largest, |x|) over all elements; NaN counts as larger than all. Bits repeat: a
// maximum does not depend on its order.
struct LargestOf {
  const void* x;  // `count` of bfloat16
  int64_t count;
  float* largest;
};
cudaError_t largest_of(const LargestOf& a, cudaStream_t stream);

enum class Float8 { kE4M3, kE5M2 };
constexpr float max_finite(Float8 type) { return type == Float8::kE4M3 ? 448.0F : 57344.0F; }

// x as numbers of 8 bits times `scale`: as it lies, transposed, or both. At most kMostRows rows.
// One NaN makes all of them NaN.
constexpr int64_t kMostRows = int64_t{65'535} * 128;
struct ToFloat8 {
  const void* x;         // (height, width) of bfloat16, rows at multiples of 16 bytes
  const float* largest;  // what largest_of() found, for the scale; null: the scale is given
  float* scale;          // *largest / the format's largest number
  void* rows;            // (height, width), or null
  void* columns;         // (width, padded_height), zeros from `height` on, or null
  Float8 type;
  // stride: elements from row to row; width and padded_height: multiples of 16.
  int64_t height, width, stride, padded_height;
};
cudaError_t to_float8(const ToFloat8& a, cudaStream_t stream);

// swiglu_backward() whose results are of 8 bits alone: the gradients of a and b beside one another
// in E5M2, times `scale`; y once more in E4M3, times `y_scale`. All bfloat16 otherwise.
struct SwigluToFloat8 {
  const void *a, *b, *dy;  // (height, width), rows at multiples of 16 bytes
  const float* largest;    // of the gradients: what swiglu_backward() notes
  float* scale;
  const float* y_scale;
  void* rows;       // (height, 2 width)
  void* columns;    // (2 width, padded_height), zeros from `height` on
  void* y_columns;  // (width, padded_height), the same
  // stride: a's and b's, in elements; width and padded_height: multiples of 16.
  int64_t height, width, stride, padded_height;
};
cudaError_t swiglu_to_float8(const SwigluToFloat8& a, cudaStream_t stream);

}  // namespace flashstep::ops_cuda
