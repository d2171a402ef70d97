// Root-mean-square normalization.
#pragma once

#include <torch/types.h>

namespace flashstep {

// y = weight * x / sqrt(mean(x^2 over the last dimension) + epsilon), computed in float32 (float64
// for float64 input), differentiable in x and weight.
//   x (..., C) of a floating dtype; weight (C).
// Returns x's shape and dtype; under autocast the autocast dtype, because what follows a norm is a
// matrix product that would round to it anyway. UserError for a weight that does not fit.
// Source: Zhang and Sennrich, "Root mean square layer normalization" (2019), equation 4.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

// The same, with tensor operations only.
at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double epsilon);

}  // namespace flashstep
