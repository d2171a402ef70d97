// The gate of the SwiGLU feed-forward network.
#pragma once

#include <torch/types.h>

namespace flashstep {

// silu(a) * b with silu(a) = a / (1 + exp(-a)), element by element, computed in float32 (float64
// for float64 inputs) and rounded once. Differentiable.
//   a, b: the same shape and floating dtype. Returns that shape and dtype.
// Source: Shazeer, "GLU variants improve Transformer" (2020), equation 6.
at::Tensor swiglu(const at::Tensor& a, const at::Tensor& b);

// The same, with tensor operations only.
at::Tensor swiglu_reference(const at::Tensor& a, const at::Tensor& b);

}  // namespace flashstep
