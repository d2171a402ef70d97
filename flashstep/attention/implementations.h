// What an implementation of attention is. Two kinds: formulas, whose tensor operations bring their
// own gradients, and kernels, which write outputs and gradients and stand behind one autograd
// function (kernel_function.cc).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <torch/library.h>
#include <torch/types.h>

#include "flashstep/attention/cpu/kernels.h"
#include "flashstep/attention/problem.h"

namespace flashstep::internal {

// As the diagonal of an operator: M - N, of shapes that who calls it does not know.
inline constexpr int64_t kLastSeesLast = INT64_MIN;

struct AttentionSettings {
  double scale;
  bool causal;
  // With causal: query i sees keys 0..i + diagonal; 0, or M - N where the last query sees the last
  // key.
  int64_t diagonal;
  std::optional<int64_t> window;  // with causal: of these keys the last `window`
  bool deterministic;
  at::Tensor documents;  // (2, B..., N), contiguous; undefined: none
};

// Arguments after the checks of attention(): D >= 1 and everything resolved; for kernels N, M >= 1.
struct AttentionProblem {
  at::Tensor q, k, v;  // (B..., H, N, D), (B..., H_kv, M, D) twice, one dtype and device
  AttentionSettings settings;
};

// Zero batches, heads, queries or keys: results are empty or zero, and the formula gives them.
inline bool nothing_to_compute(const AttentionProblem& problem) {
  return problem.q.numel() == 0 || problem.k.numel() == 0;
}

// Output and logsumexp; the latter undefined where an implementation gives none.
using AttentionResult = std::pair<at::Tensor, at::Tensor>;

// A formula: differentiable tensor operations.
AttentionResult naive_attention(const AttentionProblem& problem, bool with_logsumexp);
at::Tensor sdpa_attention(const AttentionProblem& problem);
// UserError for who differentiates the gradients of any implementation but naive.
void refuse_second_derivatives();

// As visible_keys() takes it.
attention_kernel::Mask bounded_mask(const AttentionSettings& settings, const at::Tensor& q,
                                    const at::Tensor& k);
// (queries, keys) bool, true where a query must not see a key, of these; (B..., 1, queries, keys)
// with documents.
at::Tensor hidden_pairs(const attention_kernel::Mask& mask, const at::Tensor& documents,
                        attention_kernel::Range queries, attention_kernel::Range keys,
                        at::Device device);
// (queries, 1) bool, true for those that see no key at all.
at::Tensor sees_nothing(const attention_kernel::Mask& mask, attention_kernel::Range queries,
                        at::Device device);
// Whether there is such a one.
bool some_see_nothing(const attention_kernel::Mask& mask);
// k or v with every head repeated for the queries that read it: (B..., H, M, D).
at::Tensor one_head_per_query_head(const at::Tensor& x, const at::Tensor& q);

// A kernel reads and writes (B, H, rows, D) tensors with unit stride in D; logsumexp is (B, H, N)
// float32 (float64 for float64), contiguous. Outputs are written whole.
struct ForwardTensors {
  at::Tensor q, k, v, out, logsumexp;
};
struct BackwardTensors {
  at::Tensor q, k, v, out, logsumexp, grad_out;
  at::Tensor grad_logsumexp;  // undefined for zero
  at::Tensor grad_q, grad_k, grad_v;
  // Of kCudaKernel: grad_q and grad_k are of what rope has turned by them, to q and k. (rows, D /
  // 2) float32, contiguous; undefined: of q and k.
  at::Tensor cos, sin;
};

struct AttentionKernel {
  const char* name;
  // What is expected instead of such inputs ("D a multiple of 8 from 8 to 256, got 20"); empty when
  // the kernel takes them.
  std::string (*refusal)(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
  void (*forward)(const ForwardTensors& tensors, const AttentionSettings& settings);
  void (*backward)(const BackwardTensors& tensors, const AttentionSettings& settings);
};

extern const AttentionKernel kTiledKernel, kCpuKernel, kCudaKernel;
// PyTorch's threads, as the CPU kernels get them (cpu_attention.cc).
attention_cpu::Parallel torch_threads();
// nullptr when this build has no such kernel.
const AttentionKernel* find_attention_kernel(std::string_view name);

// Runs a kernel on tensors of any rank, with its gradients, through the operator
// flashstep::attention_forward.
AttentionResult kernel_attention(const AttentionKernel& kernel, const AttentionProblem& problem);

// Whether turned_attention() takes heads of such a dtype and size, where attention() would take
// `implementation`.
bool has_turned_attention(at::ScalarType dtype, int64_t head_dim, at::Device device,
                          const std::string& implementation);
// Causal attention of 16-bit q (B, H, N, D) and k (B, H_kv, N, D) that rope has turned by cos and
// sin (N, D / 2) float32. The gradients are of what it turned, so that its backward needs no pass
// of its own; they and v's are views of one tensor (B, N, H + 2 H_kv, D).
at::Tensor turned_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& cos, const at::Tensor& sin,
                            std::optional<int64_t> window, const at::Tensor& documents);

// The name of the implementation that "auto" takes (auto.cc).
std::string choose_attention(const AttentionProblem& problem, bool with_logsumexp);

// Defines the operators flashstep::attention_forward and attention_backward.
void register_attention_kernels(torch::Library& library);

// UserError unless q, k and v have shapes, dtypes and devices that go together.
void check_attention_tensors(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// UserError for a window of no key, or without causal.
void check_window(bool causal, std::optional<int64_t> window);

// UserError unless these are the documents of such queries and keys, or undefined.
void check_documents(const at::Tensor& documents, const at::Tensor& q, const at::Tensor& k);

// Under autocast float32 and other 16-bit inputs become the autocast dtype.
at::Tensor in_autocast_dtype(const at::Tensor& x);

// x with its leading dimensions as one, or with more of size 1: a view, or a copy where there is
// none.
at::Tensor with_dimensions(const at::Tensor& x, int64_t rank);

// What the vector and GPU kernels take besides their device: dtype, and head dims in such steps.
std::string kernel_refusal(const at::Tensor& q, int64_t dim_step);
// Tensors as the kernels see them.
attention_kernel::Problem kernel_problem(const at::Tensor& q, const at::Tensor& k,
                                         const AttentionSettings& settings);
attention_kernel::Input kernel_input(const at::Tensor& x);
attention_kernel::Output kernel_output(const at::Tensor& x);

}  // namespace flashstep::internal
