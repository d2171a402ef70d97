// The bridge from tensors to the CUDA kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include "flashstep/ops/cuda/kernels.h"

namespace flashstep::ops_cuda {

// x: float32, bfloat16 or float16.
inline Element element_of(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat      ? Element::kFloat32
         : x.scalar_type() == at::kBFloat16 ? Element::kBfloat16
                                            : Element::kFloat16;
}

}  // namespace flashstep::ops_cuda
