// Matrix products, with what is added to them in the same pass.
#pragma once

#include <torch/types.h>

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

// How product() multiplies float32 on GPUs, which have no tensor cores for it.
enum class Float32Products {
  kExact,  // in float32, or TF32 where LibTorch is told to (allowTF32CuBLAS)
  // Each number as the sum of two bfloat16, and the three largest of their four products ("bf16x3";
  // Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype", 2019):
  // about 5 times as fast. Relative to the root mean square 5e-6 to 2e-5 from the product, more for
  // large K, instead of 7e-7. Numbers beyond bfloat16's largest, 3.39e38, count as infinite, and
  // what is not finite makes its row and column of d not finite. Takes 6 bytes for each element of
  // a and b while it computes.
  kSplit,
};

// For the whole process, until it is set again; kExact at first. Products with a side below 64 stay
// exact.
void set_float32_products(Float32Products how);
Float32Products float32_products();

namespace internal {

// Whether a product of such tensors is split.
bool splits_products(const at::Tensor& a);

}  // namespace internal
}  // namespace flashstep
