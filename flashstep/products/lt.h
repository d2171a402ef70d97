// cuBLASLt behind tensors. lt.cc in a build with CUDA; no_lt.cc, which takes no tensor, in the
// others.
#pragma once

#include <torch/types.h>

namespace flashstep::internal {

bool lt_takes(const at::Tensor& a);
// As flashstep::product, which has checked its arguments.
void lt_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d, const at::Tensor& c);

}  // namespace flashstep::internal
