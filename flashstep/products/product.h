// Matrix products, with what is added to them in the same pass.
#pragma once

#include <torch/types.h>

namespace flashstep {

// d = a b, or d = a b + c, summed in float32. (cuBLASLt rounds the product to a 16-bit d's dtype
// before it adds c.)
//   a (M, K), b (K, N) of one dtype of float32, bfloat16 or float16, whose rows or columns are
//   dense (a transposed view is taken as it lies); d (M, N) of that dtype or float32, its rows
//   dense; c (M, N), of d's dtype and strides, may be d itself; undefined: nothing is added.
// On a GPU cuBLASLt computes it, with the algorithm that its heuristic names first for the shape:
// the same on every call, so that bits repeat. No autograd. UserError for what does not fit.
void product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d,
             const at::Tensor& c = {});

}  // namespace flashstep
