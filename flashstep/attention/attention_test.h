// For tests of attention: random problems, their float64 results, and the comparison by the rule of
// twice the naive error. (Included by tests only.)
#pragma once

#include <string>
#include <vector>

#include "flashstep/attention/attention.h"
#include "flashstep/base/text.h"
#include "flashstep/testing/compare.h"

namespace flashstep::attention_testing {

using at::Tensor;

struct Shape {
  std::vector<int64_t> leading;  // of q, the last being the heads
  int64_t kv_heads;              // 0: as many as q has
  int64_t n, m, d;
};

inline std::string text(const Shape& s) {
  return str("leading ", testing::shape_text(s.leading), " kv heads ", s.kv_heads, " N ", s.n,
             " M ", s.m, " D ", s.d);
}

struct Inputs {
  Tensor q, k, v, grad_out, grad_logsumexp;
};

inline Inputs random_inputs(const Shape& s, at::ScalarType dtype, at::Device device) {
  auto kv_leading = s.leading;
  if (s.kv_heads > 0) kv_leading.back() = s.kv_heads;
  const auto make = [&](std::vector<int64_t> sizes, std::vector<int64_t> rest) {
    sizes.insert(sizes.end(), rest.begin(), rest.end());
    return torch::randn(sizes).to(device, dtype);
  };
  return {make(s.leading, {s.n, s.d}), make(kv_leading, {s.m, s.d}), make(kv_leading, {s.m, s.d}),
          make(s.leading, {s.n, s.d}), make(s.leading, {s.n}).to(at::kFloat)};
}

struct Results {
  Tensor out, logsumexp, grad_q, grad_k, grad_v;
};

// Forward and backward in `dtype`. Fresh memory is filled with NaN meanwhile, so that what a kernel
// does not write shows.
inline Results run(const Inputs& inputs, AttentionOptions options, const std::string& name,
                   at::ScalarType dtype, bool with_grad_logsumexp = false) {
  options.implementation = name;
  if (!options.deterministic) {
    options.deterministic = at::globalContext().deterministicAlgorithms();
  }
  const bool fill = at::globalContext().deterministicFillUninitializedMemory();
  const bool strict = at::globalContext().deterministicAlgorithms();
  at::globalContext().setDeterministicFillUninitializedMemory(true);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  std::vector<Tensor> x;
  for (const Tensor& t : {inputs.q, inputs.k, inputs.v}) {
    x.push_back(t.detach().to(dtype).requires_grad_());
  }
  auto [out, logsumexp] = attention_with_logsumexp(x[0], x[1], x[2], options);
  std::vector<Tensor> of = {out}, with = {inputs.grad_out.to(dtype)};
  if (with_grad_logsumexp) {
    of.push_back(logsumexp);
    with.push_back(inputs.grad_logsumexp.to(logsumexp.scalar_type()));
  }
  const auto gradients = torch::autograd::grad(of, x, with);
  at::globalContext().setDeterministicAlgorithms(strict, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(fill);
  return {out.detach(), logsumexp.detach(), gradients[0], gradients[1], gradients[2]};
}

// What rounding alone may add where the naive formula happens to be exact: a few units in the last
// place of the result's magnitude. And in float32, where dS = P (dP - D) cancels: dP and D are sums
// of D products of order 1, each rounded to 2^-24 of a sum of order sqrt(D), in another order.
inline double epsilon_of(at::ScalarType dtype, const Tensor& oracle) {
  const double d = static_cast<double>(oracle.size(-1));
  const double unit = dtype == at::kDouble  ? 1e-14
                      : dtype == at::kFloat ? std::max(6e-7, d * std::exp2(-24))
                      : dtype == at::kHalf  ? 1e-3
                                            : 8e-3;
  const double largest = oracle.numel() ? oracle.abs().nan_to_num(0, 0, 0).max().item<double>() : 0;
  return unit * std::max(largest, 1.0);
}

// Compares all five results of `name` with float64, allowing twice the error of naive.
inline void expect_right(const Inputs& inputs, const AttentionOptions& options,
                         const std::string& name, const std::string& what,
                         bool with_grad_logsumexp = false) {
  const auto dtype = inputs.q.scalar_type();
  const Results oracle = run(inputs, options, "naive", at::kDouble, with_grad_logsumexp);
  const Results naive = run(inputs, options, "naive", dtype, with_grad_logsumexp);
  const Results got = run(inputs, options, name, dtype, with_grad_logsumexp);
  const auto check = [&](const char* part, Tensor Results::*member) {
    EXPECT_TRUE(testing::within_twice_naive(got.*member, naive.*member, oracle.*member,
                                            epsilon_of(dtype, oracle.*member)))
        << part << " of " << name << ", " << dtype << ", " << what
        << (options.causal ? options.align_last ? ", causal, last" : ", causal" : ", full");
  };
  check("out", &Results::out);
  check("dq", &Results::grad_q);
  check("dk", &Results::grad_k);
  check("dv", &Results::grad_v);
  // The naive formula's scores are rounded to 16 bits before the exponential: float32 of them.
  const auto seen = at::isfinite(oracle.logsumexp);
  EXPECT_TRUE(testing::same_bits(at::isfinite(got.logsumexp), seen)) << name << " " << what;
  EXPECT_TRUE(testing::close(got.logsumexp.masked_fill(~seen, 0),
                             oracle.logsumexp.masked_fill(~seen, 0),
                             dtype == at::kDouble ? 1e-12 : 2e-5, 1e-6))
      << "logsumexp of " << name << ", " << what;
}

inline std::vector<AttentionOptions> masks() {
  AttentionOptions full, causal, last;
  causal.causal = last.causal = last.align_last = true;
  return {full, causal, last};
}

}  // namespace flashstep::attention_testing
