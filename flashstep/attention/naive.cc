#include <limits>

#include <ATen/Dispatch.h>

#include "flashstep/attention/implementations.h"

namespace flashstep::internal {
namespace {

double lowest(at::ScalarType dtype) {
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "lowest", [] {
    return static_cast<double>(std::numeric_limits<scalar_t>::lowest());
  });
}

}  // namespace

at::Tensor hidden_pairs(const AttentionProblem& problem) {
  const auto& q = problem.q;
  const int64_t n = q.size(-2), m = problem.k.size(-2);
  return at::ones({n, m}, q.options().dtype(at::kBool)).triu(problem.diagonal + 1);
}

at::Tensor naive_attention(const AttentionProblem& problem) {
  auto scores = at::matmul(problem.q, problem.k.transpose(-2, -1)) * problem.scale;
  if (!problem.causal) return at::matmul(at::softmax(scores, -1), problem.v);
  // The lowest finite number instead of -inf keeps a row that sees no key free of NaN, forward and
  // backward; the second fill turns its uniform weights into zeros and changes nothing elsewhere.
  const auto hidden = hidden_pairs(problem);
  const auto weights = at::softmax(scores.masked_fill(hidden, lowest(scores.scalar_type())), -1)
                           .masked_fill(hidden, 0);
  return at::matmul(weights, problem.v);
}

}  // namespace flashstep::internal
