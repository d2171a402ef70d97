#include <algorithm>
#include <limits>

#include "flashstep/attention/implementations.h"
#include "flashstep/profiling.h"

namespace flashstep::internal {

using attention_kernel::Range;

namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

at::Tensor logsumexp(const at::Tensor& scores, const at::Tensor& hidden) {
  const auto wide = scores.scalar_type() == at::kDouble ? scores : scores.to(at::kFloat);
  const auto sum = at::logsumexp(wide, -1);
  if (!hidden.defined()) return sum;
  return sum.masked_fill(hidden.all(-1), kMinusInfinity);
}

}  // namespace

attention_kernel::Mask bounded_mask(const AttentionSettings& settings, const at::Tensor& q,
                                    const at::Tensor& k) {
  return attention_kernel::bounded({q.size(-2), k.size(-2), settings.causal, settings.diagonal,
                                    settings.window.value_or(attention_kernel::kNoWindow)});
}

at::Tensor hidden_pairs(const attention_kernel::Mask& mask, const at::Tensor& documents,
                        Range queries, Range keys, at::Device device) {
  const auto all = at::ones({queries.size(), keys.size()}, at::device(device).dtype(at::kBool));
  const int64_t last = queries.begin + mask.diagonal - keys.begin;  // that the first query sees
  auto hidden = all.triu(last + 1);
  if (has_window(mask)) hidden = hidden.logical_or(all.tril(last - mask.window));
  if (!documents.defined()) return hidden;
  const auto spans =
      documents.narrow(-1, queries.begin, queries.size()).unsqueeze(-2).unsqueeze(-1);
  const auto key = at::arange(keys.begin, keys.end, spans.options());
  return hidden.logical_or(key < spans[0]).logical_or(key >= spans[1]);
}

at::Tensor sees_nothing(const attention_kernel::Mask& mask, Range queries, at::Device device) {
  const auto end = at::arange(queries.begin, queries.end, at::device(device).dtype(at::kLong)) +
                   (mask.diagonal + 1);
  return ((end - mask.window).clamp_min(0) >= end.clamp_max(mask.m)).unsqueeze(-1);
}

bool some_see_nothing(const attention_kernel::Mask& mask) {
  const auto sees_none = [&](int64_t query) { return visible_keys(mask, query).size() == 0; };
  return sees_none(0) || sees_none(mask.n - 1);
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
  if (problem.settings.causal || problem.settings.documents.defined()) {
    const ScopedRange range("softmax");
    const auto mask = bounded_mask(problem.settings, problem.q, problem.k);
    hidden = hidden_pairs(mask, problem.settings.documents, {0, mask.n}, {0, mask.m},
                          problem.q.device());
    scores = scores.masked_fill(hidden, kMinusInfinity);
    // Equal scores instead keep a row that sees no key free of NaN, forward and backward; the
    // second fill turns its uniform weights into zeros and changes nothing elsewhere.
    if (some_see_nothing(mask))
      scores = scores.masked_fill(sees_nothing(mask, {0, mask.n}, problem.q.device()), 0);
    weights = at::softmax(scores, -1).masked_fill(hidden, 0);
  } else {
    const ScopedRange range("softmax");
    weights = at::softmax(scores, -1);
  }
  const ScopedRange range("values");
  return {at::matmul(weights, v), with_logsumexp ? logsumexp(scores, hidden) : at::Tensor()};
}

}  // namespace flashstep::internal
