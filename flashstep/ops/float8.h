// Matrices rounded to 8-bit floating-point numbers, for products of a model's blocks in training.
//
// All numbers of a matrix have one scale, its largest magnitude over the largest that 8 bits hold,
// found anew each time ("per-tensor, current scaling"). Values and weights are float8_e4m3fn (3
// bits of fraction), gradients float8_e5m2 (2 bits, and a range as float16's): Micikevicius et al.,
// "FP8 Formats for Deep Learning" (2022). Tensor cores take both operands of a product with the
// summed dimension dense, so that two of the three products of a linear layer need a transpose.
#pragma once

#include <torch/types.h>

#include "flashstep/products/product.h"

namespace flashstep::internal {

struct Float8Matrix {
  at::Tensor rows;     // (R, C), as it lies; undefined where not wanted
  at::Tensor columns;  // (C, R rounded up to a multiple of 16): the transpose, zeros behind it (NaN
                       // where all is)
  at::Tensor scale;    // () float32

  ScaledMatrix by_rows() const { return {rows, scale}; }
  ScaledMatrix by_columns() const { return {columns, scale}; }
};

enum class Float8Layout { kRows, kColumns, kBoth };

// The largest magnitude of x (...) bfloat16 on a GPU ("amax"): () float32. NaN where one is NaN.
at::Tensor largest_of(const at::Tensor& x);

// x (R, C) bfloat16 on a GPU, C a multiple of 16, copied unless it is dense; largest:
// largest_of(x), or what the kernel that made x has found. What is not finite makes all of a
// product NaN.
Float8Matrix to_float8(const at::Tensor& x, at::ScalarType type, Float8Layout layout,
                       const at::Tensor& largest);
// The same numbers as an earlier call's, of its scale.
Float8Matrix to_float8_again(const at::Tensor& x, at::ScalarType type, Float8Layout layout,
                             const at::Tensor& scale);

// swiglu's backward, of bfloat16, whose results products of 8 bits take.
struct SwigluInFloat8 {
  Float8Matrix gradients;  // (R, 2 F): a's, b's beside them; float8_e5m2
  at::Tensor y_columns;    // (F, R rounded up): forward's result transposed, of forward's scale
};
// a, b (R, F) with dense rows, of equal strides; dy (R, F) dense; F a multiple of 16.
SwigluInFloat8 swiglu_backward_in_float8(const at::Tensor& a, const at::Tensor& b,
                                         const at::Tensor& dy, const at::Tensor& y_scale);

}  // namespace flashstep::internal
