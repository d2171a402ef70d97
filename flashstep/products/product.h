// Matrix products, with what is added to them in the same pass.
#pragma once

#include <torch/types.h>

#include "flashstep/detail/float32_products.h"

namespace flashstep {

// d = a b, or d = a b + c, summed in float32. (On a GPU a 16-bit d is rounded before c is added,
// and an algorithm that splits K may add its parts in d's dtype, as in LibTorch's own products.)
//   a (M, K), b (K, N) of one dtype of float32, bfloat16 or float16 (taken as they lie where rows
//   or columns are dense, else copied); d (M, N) of that dtype or float32, its rows dense; c (M,
//   N), of d's dtype and strides, may be d itself; undefined: nothing is added.
// On a GPU cuBLASLt computes it, with the algorithm of products/tuned.h for the shape, or else the
// one that its heuristic names first: the same on every call, so that bits repeat. No autograd.
// UserError for what does not fit.
void product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d,
             const at::Tensor& c = {});

// d = alpha a b + beta c of each matrix of a batch:
//   a (B, M, K), b (B, K, N), of any strides, of one dtype; d (B, M, N), another tensor than these;
//   c like d, or undefined: nothing is added.
// On a GPU cuBLASLt computes those of 16 bits whose matrices have dense rows or columns, rows in d,
// as above; the others, and those of a CPU, LibTorch does.
void batched_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d,
                     double alpha = 1, const at::Tensor& c = {}, double beta = 1);

// A matrix of 8-bit floating-point numbers, each of which means its value times one scale.
struct ScaledMatrix {
  at::Tensor values;  // (M, K) float8_e4m3fn or float8_e5m2, dense
  at::Tensor scale;   // () float32, on the same device
};

// d = a b^T, or a b^T + c, by tensor cores of 8 bits. A Hopper's add up few of them in 14 bits or
// so before they go into float32, as LibTorch's _scaled_mm without use_fast_accum, which would
// leave all there: of 16,384 positive numbers a quarter would be lost.
//   a (M, K), b (N, K), not both of float8_e5m2, at multiples of 16 bytes; K and N multiples of 16;
//   d (M, N) bfloat16 or float32, its rows dense and at multiples of 16 bytes; c as product()'s.
// On a GPU of compute capability 8.9 or higher: has_scaled_products(). No autograd. UserError for
// what does not fit.
void scaled_product(const ScaledMatrix& a, const ScaledMatrix& b, const at::Tensor& d,
                    const at::Tensor& c = {});
bool has_scaled_products(const at::Device& device);
bool takes_scaled_product(const at::Tensor& d);  // whether d lies at such multiples

namespace internal {

// Whether a product of such tensors is split.
bool splits_products(const at::Tensor& a);

// Whether a program lets GPUs round float32 operands to TF32, by PyTorch's new switches or its old
// ones. (allowTF32CuBLAS() knows the old ones, and throws where the new ones were used.)
bool rounds_to_tf32();

}  // namespace internal
}  // namespace flashstep
