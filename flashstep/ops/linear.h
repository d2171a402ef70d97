// Matrix products of activations and weights, fast in 16 bits on processors that have none.
#pragma once

#include <string>

#include <torch/types.h>

namespace flashstep {

// x weight^T, as LibTorch's linear: under autocast in autocast's dtype, else in x's.
// Differentiable once.
//   x (..., C), weight (R, C) of one floating dtype (under autocast also float32). Returns (...,
//   R).
// On a CPU that has no products of bfloat16 or float16 LibTorch can take 100 times as long as in
// float32. There this function keeps activations and gradients in 16 bits and multiplies in
// float32; a float32 weight is then not rounded, and its gradient neither. float32 on a GPU is
// multiplied as set_float32_products() says (products/product.h).
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight);

// Whether LibTorch computes products of `dtype` on this CPU by instructions made for it. True for
// dtypes of 32 and 64 bits. ONEDNN_MAX_CPU_ISA, which forbids instructions, is honoured.
bool cpu_multiplies(at::ScalarType dtype);

// What there is to say about products of `dtype` on this CPU; empty where it has them.
std::string products_note(at::ScalarType dtype);

namespace internal {

// linear() as it is where the CPU has no products of `dtype`, of 16 bits.
at::Tensor widened_linear(const at::Tensor& x, const at::Tensor& weight, at::ScalarType dtype);

// Whether oneDNN, allowed no more than `isa` (a value of ONEDNN_MAX_CPU_ISA), has such products.
bool isa_multiplies(const std::string& isa, at::ScalarType dtype);

}  // namespace internal
}  // namespace flashstep
