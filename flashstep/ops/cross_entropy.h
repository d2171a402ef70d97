// The loss of a language model.
#pragma once

#include <torch/types.h>

namespace flashstep {

// Mean over all positions of log(sum(exp(logits))) - logits[target], in nats, computed in float32
// (float64 for float64 logits). Differentiable once in logits.
//   logits (..., V) of a floating dtype; targets (...) int64, each in [0, V).
// Returns a scalar, float32 (float64 for float64 logits). UserError for shapes that do not fit and,
// on the CPU, for a target outside [0, V). No positions give NaN, as a mean of nothing does.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

// The same, with tensor operations only.
at::Tensor cross_entropy_reference(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace flashstep
