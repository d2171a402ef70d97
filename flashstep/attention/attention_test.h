// For tests of attention: random problems, their float64 results, and the comparison by the rule of
// twice the naive error. (Included by tests only.)
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/autograd/autograd.h>

#include "flashstep/attention.h"
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

// What rounding alone may add where the naive formula happens to be exact, relative to the largest
// magnitude nearby: one or two units in the last place. In float32 also the sums of D products in
// dP and D, each rounded to 2^-24 of a sum of order sqrt(D), in another order.
inline double unit_of(at::ScalarType dtype, int64_t d) {
  return dtype == at::kDouble  ? 1e-14
         : dtype == at::kFloat ? std::max(6e-7, static_cast<double>(d) * std::exp2(-24))
         : dtype == at::kHalf  ? 1e-3
                               : 8e-3;
}

// The largest |x| (..., rows, D) of all heads in each block of 64 rows, for every row: (rows, 1).
inline Tensor largest_by_rows(const Tensor& x) {
  constexpr int64_t kRows = 64;
  const int64_t rows = x.size(-2), blocks = (rows + kRows - 1) / kRows;
  const auto of_rows =
      x.detach().to(at::kDouble).abs().reshape({-1, rows, x.size(-1)}).amax({0, 2});
  const auto padded = at::constant_pad_nd(of_rows, {0, blocks * kRows - rows});
  const auto of_blocks = padded.view({blocks, kRows}).amax(1, /*keepdim=*/true);
  return of_blocks.expand({blocks, kRows}).flatten().narrow(0, 0, rows).unsqueeze(1);
}

// The rule of twice the naive error, by blocks of 64 rows: under a causal mask the rows of a tensor
// differ in size, and one bound for all would hide what is wrong in the small ones. `magnitude`
// (like oracle) is what the roundings of an element are relative to.
inline ::testing::AssertionResult within_twice_naive_by_rows(const Tensor& actual,
                                                             const Tensor& naive,
                                                             const Tensor& oracle,
                                                             const Tensor& magnitude, double unit) {
  if (oracle.numel() == 0) return testing::close(actual, oracle, 0);
  return testing::close_within(
      actual, oracle,
      2 * largest_by_rows(naive.to(at::kDouble) - oracle) + unit * largest_by_rows(magnitude));
}

// What the roundings of dq and dk are relative to. dS = P (dP - D) cancels, often to zero: each of
// its roundings is relative to P |dP| and P |D|, and they add up with signs of their own, so
//   dq: scale sqrt(sum_j P_ij^2 (dP_ij^2 + D_i^2) k_j^2), dk: likewise with q_i, summed over i.
struct GradMagnitudes {
  Tensor q, k;
};

inline GradMagnitudes grad_magnitudes(const Inputs& x, const AttentionOptions& options,
                                      const Results& oracle, bool with_grad_logsumexp) {
  const auto wide = [](const Tensor& t) { return t.detach().to(at::kDouble); };
  const auto per_query_head = [&](const Tensor& t) {
    const bool grouped = t.dim() > 2 && t.size(-3) != x.q.size(-3);
    return grouped ? wide(t).repeat_interleave(x.q.size(-3) / t.size(-3), -3) : wide(t);
  };
  const auto k = per_query_head(x.k), v = per_query_head(x.v);
  const int64_t n = x.q.size(-2), m = x.k.size(-2);
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(x.q.size(-1))));
  auto p = at::matmul(wide(x.q), k.transpose(-2, -1)).mul_(scale);
  p.sub_(oracle.logsumexp.unsqueeze(-1)).exp_();
  const int64_t diagonal = options.align_last ? m - n : 0;
  if (options.causal) p.tril_(diagonal);
  if (options.window) p.triu_(diagonal - *options.window + 1);
  if (options.documents.defined()) {
    const auto spans = options.documents.unsqueeze(-2).unsqueeze(-1);  // (2, B..., 1, N, 1)
    const auto key = at::arange(m, spans.options());
    p.masked_fill_((key < spans[0]).logical_or_(key >= spans[1]), 0);
  }
  auto dots = (wide(x.grad_out) * oracle.out).sum(-1, /*keepdim=*/true);
  if (with_grad_logsumexp) dots = dots - wide(x.grad_logsumexp).unsqueeze(-1);
  const auto terms = at::matmul(wide(x.grad_out), v.transpose(-2, -1)).square_();
  const auto squares = terms.add_(dots.square()).mul_(p.square_());
  auto of_k = at::matmul(squares.transpose(-2, -1), wide(x.q).square());
  if (x.k.sizes() != k.sizes()) {
    const int64_t group = x.q.size(-3) / x.k.size(-3);
    of_k = of_k.unflatten(-3, std::vector<int64_t>{x.k.size(-3), group}).sum(-3);
  }
  return {at::matmul(squares, k.square()).sqrt_().mul_(std::abs(scale)),
          of_k.sqrt_().mul_(std::abs(scale))};
}

// What results are compared with.
struct Reference {
  at::ScalarType dtype;
  AttentionOptions options;
  Results oracle, naive;
  GradMagnitudes magnitudes;
};

inline Reference reference_of(const Inputs& inputs, const AttentionOptions& options,
                              bool with_grad_logsumexp = false) {
  const auto dtype = inputs.q.scalar_type();
  Results oracle = run(inputs, options, "naive", at::kDouble, with_grad_logsumexp);
  Results naive = run(inputs, options, "naive", dtype, with_grad_logsumexp);
  auto magnitudes = grad_magnitudes(inputs, options, oracle, with_grad_logsumexp);
  return {dtype, options, std::move(oracle), std::move(naive), std::move(magnitudes)};
}

// Compares results with float64's, allowing twice the error of naive and `unit` of the magnitudes
// nearby.
inline void expect_results(const Results& got, const Reference& reference, double unit,
                           const std::string& what) {
  const at::ScalarType dtype = reference.dtype;
  const AttentionOptions& options = reference.options;
  const Results &oracle = reference.oracle, &naive = reference.naive;
  const GradMagnitudes& magnitudes = reference.magnitudes;
  const auto check = [&](const char* part, Tensor Results::*member, const Tensor& magnitude) {
    EXPECT_TRUE(within_twice_naive_by_rows(got.*member, naive.*member, oracle.*member,
                                           at::maximum((oracle.*member).abs(), magnitude.abs()),
                                           unit))
        << part << " of " << dtype << ", " << what
        << (options.causal ? options.align_last ? ", causal, last" : ", causal" : ", full")
        << (options.window ? str(", window ", *options.window) : "")
        << (options.documents.defined() ? ", documents" : "");
  };
  check("out", &Results::out, oracle.out);
  check("dq", &Results::grad_q, magnitudes.q);
  check("dk", &Results::grad_k, magnitudes.k);
  check("dv", &Results::grad_v, oracle.grad_v);
  // The naive formula's scores are rounded to 16 bits before the exponential: float32 of them.
  const auto seen = at::isfinite(oracle.logsumexp);
  EXPECT_TRUE(testing::same_bits(at::isfinite(got.logsumexp), seen)) << what;
  // TF32's scores (a unit above float32's) are rounded as well.
  const double absolute = dtype == at::kDouble                 ? 1e-12
                          : dtype == at::kFloat && unit > 1e-4 ? unit
                                                               : 2e-5;
  EXPECT_TRUE(testing::close(got.logsumexp.masked_fill(~seen, 0),
                             oracle.logsumexp.masked_fill(~seen, 0), absolute, 1e-6))
      << "logsumexp of " << what;
}

// The same for what implementation `name` gives.
inline void expect_right(const Inputs& inputs, const AttentionOptions& options,
                         const std::string& name, const std::string& what,
                         bool with_grad_logsumexp = false) {
  const auto dtype = inputs.q.scalar_type();
  expect_results(run(inputs, options, name, dtype, with_grad_logsumexp),
                 reference_of(inputs, options, with_grad_logsumexp),
                 unit_of(dtype, inputs.q.size(-1)), name + ", " + what);
}

inline constexpr at::ScalarType kGpuDtypes[] = {at::kBFloat16, at::kHalf, at::kFloat};

inline AttentionOptions cuda(bool causal, std::optional<bool> deterministic = {}) {
  AttentionOptions options;
  options.implementation = "cuda";
  options.causal = causal;
  options.deterministic = deterministic;
  return options;
}

inline std::vector<AttentionOptions> masks() {
  AttentionOptions full, causal, last;
  causal.causal = last.causal = last.align_last = true;
  AttentionOptions short_window = causal, long_window = last;
  short_window.window = 20;
  long_window.window = 150;
  return {full, causal, last, short_window, long_window};
}

// Of about so many positions each, some of one.
inline Tensor random_documents(std::vector<int64_t> rows, double length, at::Device device) {
  return document_spans((torch::rand(rows) < 1 / length).cumsum(-1)).to(device);
}

// Masks of N = M, with documents of about so many positions in such batches.
inline std::vector<AttentionOptions> masks_of_documents(std::vector<int64_t> rows, double length,
                                                        at::Device device) {
  AttentionOptions full, causal, windowed;
  full.documents = random_documents(rows, length, device);
  causal.documents = random_documents(rows, length, device);
  windowed.documents = random_documents(rows, length, device);
  causal.causal = windowed.causal = true;
  windowed.window = 20;
  return {full, causal, windowed};
}

}  // namespace flashstep::attention_testing
