// The loss of a language model.
#pragma once

#include <torch/types.h>

namespace flashstep {

// Mean over all positions of log(sum(exp(logits))) - logits[target], in nats, computed in float32
// (float64 for float64 logits). Differentiable once in logits.
//   logits (..., V) of a floating dtype; targets (...) int64, each in [0, V).
// Returns a scalar, float32 (float64 for float64 logits). UserError for shapes that do not fit and,
// on the CPU, for a target outside [0, V); on a GPU, which the host does not wait for, such a
// target makes the loss NaN. No positions give NaN, as a mean of nothing does.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

// The same, with tensor operations only.
at::Tensor cross_entropy_reference(const at::Tensor& logits, const at::Tensor& targets);

namespace internal {

// UserError unless targets are int64 of this shape and, on the CPU, in [0, classes).
void check_targets(const char* operation, const at::Tensor& targets, at::IntArrayRef shape,
                   int64_t classes);

}  // namespace internal

}  // namespace flashstep
