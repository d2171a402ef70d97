#include <algorithm>
#include <cmath>

#include <ATen/autocast_mode.h>

#include "flashstep/attention/attention.h"
#include "flashstep/attention/implementations.h"
#include "flashstep/base/error.h"

namespace flashstep {
namespace {

using internal::AttentionProblem;

struct Implementation {
  const char* name;
  at::Tensor (*run)(const AttentionProblem& problem);
};

// The fastest that is right. PyTorch's CPU kernel accumulates 16-bit gradients in 16 bits and is
// slower there than in float32 (backward 21 against 7 ms at B*H 128, N 128, D 32 on two cores of
// Zen 4), so 16-bit inputs are widened on the CPU.
at::Tensor auto_attention(const AttentionProblem& problem) {
  if (problem.q.scalar_type() == at::kDouble) return internal::naive_attention(problem);
  if (!problem.q.is_cpu() || problem.q.scalar_type() == at::kFloat) {
    return internal::sdpa_attention(problem);
  }
  AttentionProblem wide = problem;
  wide.q = problem.q.to(at::kFloat);
  wide.k = problem.k.to(at::kFloat);
  wide.v = problem.v.to(at::kFloat);
  return internal::sdpa_attention(wide).to(problem.q.scalar_type());
}

constexpr Implementation kImplementations[] = {
    {"auto", auto_attention},
    {"naive", internal::naive_attention},
    {"sdpa", internal::sdpa_attention},
};

const Implementation& find_implementation(const std::string& name) {
  for (const auto& candidate : kImplementations) {
    if (name == candidate.name) return candidate;
  }
  throw UserError(str("[attention] expected implementation to be one of ",
                      join(attention_implementations()), ", got \"", name, "\""));
}

void check_tensor(const char* name, const at::Tensor& x, const at::Tensor& q, int64_t rows,
                  const char* rows_name) {
  require(x.dim() == q.dim(), "[attention] expected ", name, " of rank ", q.dim(), " like q, got ",
          x.sizes());
  auto expected = q.sizes().vec();
  if (rows >= 0) expected[q.dim() - 2] = rows;
  auto compared = x.sizes().vec();
  if (rows < 0) compared[q.dim() - 2] = expected[q.dim() - 2];
  require(compared == expected, "[attention] expected ", name, " of shape (",
          q.dim() > 2 ? "B..., " : "", rows_name, ", ", q.size(-1),
          ") with q's leading dimensions, got ", x.sizes(), " beside q ", q.sizes());
  require(x.scalar_type() == q.scalar_type(), "[attention] expected ", name, " of dtype ",
          q.scalar_type(), " like q, got ", x.scalar_type());
  require(x.device() == q.device(), "[attention] expected ", name, " on ", q.device(),
          " like q, got ", x.device());
}

}  // namespace

std::vector<std::string> attention_implementations() {
  std::vector<std::string> names;
  for (const auto& candidate : kImplementations) names.emplace_back(candidate.name);
  return names;
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionOptions& options) {
  require(q.defined() && k.defined() && v.defined(), "[attention] expected tensors q, k and v");
  require(q.dim() >= 2, "[attention] expected q of shape (B..., N, D), got ", q.sizes());
  require(q.is_floating_point(), "[attention] expected q of a floating dtype, got ",
          q.scalar_type());
  require(q.size(-1) > 0, "[attention] expected head dim D >= 1, got q ", q.sizes());
  check_tensor("k", k, q, -1, "M");
  check_tensor("v", v, q, k.size(-2), "M");
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(-1))));
  require(std::isfinite(scale), "[attention] expected a finite scale, got ", scale);
  const Implementation& implementation = find_implementation(options.implementation);

  const int64_t n = q.size(-2), m = k.size(-2);
  AttentionProblem problem{q, k, v, scale, options.causal, options.align_last ? m - n : 0};
  const auto device = q.device().type();
  if (at::autocast::is_autocast_enabled(device) && q.scalar_type() == at::kFloat) {
    const auto dtype = at::autocast::get_autocast_dtype(device);
    for (auto* x : {&problem.q, &problem.k, &problem.v}) *x = x->to(dtype);
  }
  // Precision is decided above: what runs below keeps the dtypes that it chooses.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::DispatchKeySet{c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA});
  if (q.numel() == 0 || m == 0) return internal::naive_attention(problem);
  return implementation.run(problem);
}

}  // namespace flashstep
