// The head and the loss of a language model as one operation.
#pragma once

#include <torch/types.h>

namespace flashstep {

// cross_entropy(linear(x, weight), targets): the mean over all positions of
// log(sum(exp(logits))) - logits[target], logits = x weight^T, in nats. Differentiable once in x
// and weight.
//   x (..., C), weight (V, C) of floating dtypes; targets (...) int64, each in [0, V).
// Returns a scalar, float32 (float64 for float64 logits). The product's dtype is x's, under
// autocast autocast's, as at::linear has it. UserError for shapes that do not fit.
//
// On a GPU in float32 or bfloat16 the logits of all positions never exist together: rows go through
// in chunks of at most 64 MiB of logits, whose gradient takes their place and goes on to both of
// its products at once. The weight's gradient is summed over chunks in float32. Elsewhere it is the
// two operations one after the other.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& targets);

namespace internal {

// Rows of one chunk: as equal as multiples of 128, a product's tile, allow.
int64_t linear_cross_entropy_rows(int64_t rows, int64_t classes, int64_t element_bytes);

}  // namespace internal

}  // namespace flashstep
