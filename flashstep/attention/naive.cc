#include <algorithm>
#include <limits>

#include "flashstep/attention/implementations.h"
#include "flashstep/profiling.h"

namespace flashstep::internal {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

at::Tensor logsumexp(const at::Tensor& scores, const at::Tensor& hidden) {
  const auto wide = scores.scalar_type() == at::kDouble ? scores : scores.to(at::kFloat);
  const auto sum = at::logsumexp(wide, -1);
  if (!hidden.defined()) return sum;
  return sum.masked_fill(hidden.all(-1), kMinusInfinity);
}

}  // namespace

at::Tensor causal_mask(const AttentionProblem& problem) {
  const auto& q = problem.q;
  const int64_t n = q.size(-2), m = problem.k.size(-2);
  return at::ones({n, m}, q.options().dtype(at::kBool)).triu(problem.settings.diagonal + 1);
}

at::Tensor one_head_per_query_head(const at::Tensor& x, const at::Tensor& q) {
  if (x.dim() < 3 || x.size(-3) == q.size(-3)) return x;
  return x.repeat_interleave(q.size(-3) / x.size(-3), -3);
}

AttentionResult naive_attention(const AttentionProblem& problem, bool with_logsumexp) {
  const auto k = one_head_per_query_head(problem.k, problem.q);
  const auto v = one_head_per_query_head(problem.v, problem.q);
  at::Tensor scores, hidden, weights;
  {
    const ScopedRange range("scores");
    scores = at::matmul(problem.q, k.transpose(-2, -1)) * problem.settings.scale;
  }
  if (problem.settings.causal) {
    const ScopedRange range("softmax");
    hidden = causal_mask(problem);
    scores = scores.masked_fill(hidden, kMinusInfinity);
    // Equal scores instead keep a row that sees no key free of NaN, forward and backward; the
    // second fill turns its uniform weights into zeros and changes nothing elsewhere.
    const int64_t fully_masked =
        std::clamp<int64_t>(-problem.settings.diagonal, 0, problem.q.size(-2));
    if (fully_masked > 0) scores.narrow(-2, 0, fully_masked).fill_(0);
    weights = at::softmax(scores, -1).masked_fill(hidden, 0);
  } else {
    const ScopedRange range("softmax");
    weights = at::softmax(scores, -1);
  }
  const ScopedRange range("values");
  return {at::matmul(weights, v), with_logsumexp ? logsumexp(scores, hidden) : at::Tensor()};
}

}  // namespace flashstep::internal
