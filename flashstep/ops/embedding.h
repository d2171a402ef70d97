// Rows of a table by their numbers.
#pragma once

#include <torch/types.h>

namespace flashstep {

// weight[ids]: rows of weight (V, C) of a floating dtype for ids (...) int64, each in [0, V).
// Differentiable in weight; rows of equal ids are summed in float32 in the order of their
// positions, so that bits repeat. The gradient is dense and has the dtype that weight keeps
// gradients in (set_grad_dtype), or weight's. Returns (..., C). UserError for another shape or
// dtype.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);

}  // namespace flashstep
