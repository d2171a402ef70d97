#include "flashstep/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <ATen/autocast_mode.h>

#include "flashstep/attention/implementations.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

using at::Tensor;
using internal::AttentionProblem;
using internal::AttentionResult;

bool is_formula(const std::string& name) { return name == "naive" || name == "sdpa"; }

void check_q(const Tensor& q) {
  require(q.dim() >= 2, "[attention] expected q of shape (B..., N, D), got ", q.sizes());
  const auto dtype = q.scalar_type();
  require(
      dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kDouble,
      "[attention] expected q of float32, bfloat16, float16 or float64, got ", dtype);
  require(q.size(-1) > 0, "[attention] expected head dim D >= 1, got q ", q.sizes());
}

// k beside q: equal but for the rows and, in the dimension of the heads (there from rank 4 on: in
// (B, N, D) leading dimensions are batches), fewer heads.
void check_k(const Tensor& k, const Tensor& q) {
  require(k.dim() == q.dim(), "[attention] expected k of rank ", q.dim(), " like q, got ",
          k.sizes());
  auto expected = q.sizes().vec(), compared = k.sizes().vec();
  expected[q.dim() - 2] = compared[q.dim() - 2] = 0;
  const bool has_heads = q.dim() > 3;
  if (has_heads) {
    const int64_t heads = q.size(-3), kv_heads = k.size(-3);
    const bool divides = kv_heads > 0 && heads % kv_heads == 0;
    if (divides) expected[q.dim() - 3] = compared[q.dim() - 3] = 0;
  }
  require(compared == expected, "[attention] expected k of shape (", q.dim() > 2 ? "B..., " : "",
          "M, ", q.size(-1), ") with q's leading dimensions",
          has_heads ? ", or a number of heads that divides q's" : "", ", got ", k.sizes(),
          " beside q ", q.sizes());
}

void check_dtype_and_device(const char* name, const Tensor& x, const Tensor& q) {
  require(x.scalar_type() == q.scalar_type(), "[attention] expected ", name, " of dtype ",
          q.scalar_type(), " like q, got ", x.scalar_type());
  require(x.device() == q.device(), "[attention] expected ", name, " on ", q.device(),
          " like q, got ", x.device());
}

AttentionProblem checked_problem(const Tensor& q_any, const Tensor& k_any, const Tensor& v_any,
                                 const AttentionOptions& options) {
  const char* const missing = !q_any.defined() ? "q" : !k_any.defined() ? "k" : "v";
  require(q_any.defined() && k_any.defined() && v_any.defined(),
          "[attention] expected tensors q, k and v, got an undefined ", missing);
  const Tensor q = internal::in_autocast_dtype(q_any), k = internal::in_autocast_dtype(k_any),
               v = internal::in_autocast_dtype(v_any);
  internal::check_attention_tensors(q, k, v);
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(-1))));
  require(std::isfinite(scale), "[attention] expected a finite scale, got ", scale);
  const int64_t diagonal = options.align_last ? k.size(-2) - q.size(-2) : 0;
  const bool deterministic =
      options.deterministic.value_or(at::globalContext().deterministicAlgorithms());
  internal::check_window(options.causal, options.window);
  internal::check_documents(options.documents, q, k);
  const Tensor documents =
      options.documents.defined() ? options.documents.contiguous() : options.documents;
  AttentionProblem problem = {
      q, k, v, {scale, options.causal, diagonal, options.window, deterministic, documents}};
  // Keys before the first query's window nobody sees: decoding leaves most of a cache alone.
  const int64_t m = k.size(-2);
  const int64_t unseen =
      options.window ? std::clamp<int64_t>(diagonal + 1 - *options.window, 0, m) : 0;
  if (unseen > 0) {
    problem.k = k.narrow(-2, unseen, m - unseen);
    problem.v = v.narrow(-2, unseen, m - unseen);
    problem.settings.diagonal -= unseen;
  }
  return problem;
}

// UserError if there is none of this name, or it does not take such inputs.
const internal::AttentionKernel& kernel_by_name(const AttentionProblem& problem,
                                                const std::string& name) {
  const auto* kernel = internal::find_attention_kernel(name);
  require(kernel != nullptr, "[attention] expected implementation to be one of ",
          join(attention_implementations()), ", got \"", name, "\"");
  const std::string refusal = kernel->refusal(problem.q, problem.k, problem.v);
  require(refusal.empty(), "[attention] implementation ", name, " expected ", refusal);
  return *kernel;
}

AttentionResult run(const Tensor& q, const Tensor& k, const Tensor& v,
                    const AttentionOptions& options, bool with_logsumexp) {
  const AttentionProblem problem = checked_problem(q, k, v, options);
  const std::string name = options.implementation == "auto"
                               ? internal::choose_attention(problem, with_logsumexp)
                               : options.implementation;
  require(name != "sdpa" || !with_logsumexp,
          "[attention] implementation sdpa gives no logsumexp: expected another");
  const internal::AttentionKernel* const kernel =
      is_formula(name) ? nullptr : &kernel_by_name(problem, name);
  // Precision is decided: what runs below keeps the dtypes that it chooses.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::DispatchKeySet{c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA});
  if (name == "naive" || internal::nothing_to_compute(problem))
    return internal::naive_attention(problem, with_logsumexp);
  if (kernel != nullptr) return internal::kernel_attention(*kernel, problem);
  return {internal::sdpa_attention(problem), Tensor()};
}

}  // namespace

namespace internal {

Tensor in_autocast_dtype(const Tensor& x) {
  const auto device = x.device().type();
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device) ||
      !x.is_floating_point() || x.scalar_type() == at::kDouble) {
    return x;
  }
  return x.to(at::autocast::get_autocast_dtype(device));
}

void check_attention_tensors(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_q(q);
  check_k(k, q);
  require(v.sizes() == k.sizes(), "[attention] expected v of shape ", k.sizes(), " like k, got ",
          v.sizes());
  check_dtype_and_device("k", k, q);
  check_dtype_and_device("v", v, q);
}

void check_window(bool causal, std::optional<int64_t> window) {
  require(!window || (causal && *window >= 1),
          "[attention] expected a window of at least 1 key, with causal, got ", window.value_or(0),
          causal ? "" : " without causal");
}

void check_documents(const Tensor& documents, const Tensor& q, const Tensor& k) {
  if (!documents.defined()) return;
  require(q.dim() >= 4 && q.size(-2) == k.size(-2),
          "[attention] expected q (B..., H, N, D) and k of as many rows with documents, got q ",
          q.sizes(), " and k ", k.sizes());
  auto expected = q.sizes().slice(0, q.dim() - 3).vec();
  expected.insert(expected.begin(), 2);
  expected.push_back(q.size(-2));
  require(documents.sizes() == expected && documents.scalar_type() == at::kInt &&
              documents.device() == q.device(),
          "[attention] expected documents ", at::IntArrayRef(expected), " of Int on ", q.device(),
          ", as document_spans() gives them, got ", documents.sizes(), " of ",
          documents.scalar_type(), " on ", documents.device());
}

}  // namespace internal

Tensor document_spans(const Tensor& ids, std::optional<int64_t> end) {
  require(ids.defined(), "[document_spans] expected ids (B..., N), got an undefined tensor");
  require(ids.dim() >= 1 && at::isIntegralType(ids.scalar_type(), /*includeBool=*/true),
          "[document_spans] expected ids (B..., N) of integers, got ", ids.sym_sizes(), " of ",
          ids.scalar_type());
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  const std::optional<int64_t> n = ids.sym_size(-1).maybe_as_int();  // a compiler need not know
  require(!n || *n < kMost, "[document_spans] expected rows of less than ", kMost, " ids, got ",
          *n);
  const Tensor before = ids.slice(-1, 0, -1);
  const Tensor changes = end ? before.eq(*end) : before.ne(ids.slice(-1, 1));
  const Tensor edge = at::ones_like(ids.slice(-1, 0, 1), at::kBool);
  const Tensor behind = at::ones_like(ids, at::kInt).cumsum(-1, at::kInt);  // each position
  const Tensor begins = at::where(at::cat({edge, changes}, -1), behind - 1, 0);
  const Tensor ends = at::where(at::cat({changes, edge}, -1), behind, kMost);
  return at::stack({std::get<0>(begins.cummax(-1)), std::get<0>(ends.flip(-1).cummin(-1)).flip(-1)})
      .to(at::kInt);
}

std::vector<std::string> attention_implementations() {
  std::vector<std::string> names = {"auto", "naive"};
  for (const char* name : {"tiled", "cpu", "cuda"}) {
    if (internal::find_attention_kernel(name) != nullptr) names.emplace_back(name);
  }
  names.emplace_back("sdpa");
  return names;
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options) {
  return run(q, k, v, options, /*with_logsumexp=*/false).first;
}

std::pair<Tensor, Tensor> attention_with_logsumexp(const Tensor& q, const Tensor& k,
                                                   const Tensor& v,
                                                   const AttentionOptions& options) {
  return run(q, k, v, options, /*with_logsumexp=*/true);
}

std::string attention_auto(const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionOptions& options) {
  return internal::choose_attention(checked_problem(q, k, v, options),
                                    /*with_logsumexp=*/false);
}

}  // namespace flashstep
