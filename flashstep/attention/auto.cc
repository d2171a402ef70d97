// What "auto" takes: rules by device, dtype and shape, from measurements that are named here. They
// are never taken at run time, so that a run repeats bit for bit wherever it is repeated.
#include "flashstep/attention/attention.h"
#include "flashstep/attention/implementations.h"

namespace flashstep::internal {
namespace {

bool takes(const char* name, const AttentionProblem& problem) {
  const AttentionKernel* kernel = find_attention_kernel(name);
  return kernel != nullptr && kernel->refusal(problem.q, problem.k, problem.v).empty();
}

int64_t rows_of_queries(const AttentionProblem& problem) {  // B H N
  return problem.q.numel() / problem.q.size(-1);
}

// Where PyTorch's kernels are faster than ours.
struct Rule {
  int capability_major;  // of the GPU
  int64_t least_d, most_d;
  int64_t least_rows;  // B H N
};

// Compute capability 9.0, bfloat16 (float16 has the same instructions): cuDNN's kernels, which
// scaled_dot_product_attention takes there, drive the matrix units by wgmma and win wherever there
// are tiles enough to fill the GPU; with fewer rows, and with D up to 32, ours win. Measured on an
// H200: reports/attention_h200_2026-11-21/handout.md (one head), throughput.md beside it (64
// heads). Other GPUs are not measured: there and for float32 ours is taken.
constexpr Rule kSdpaIsFaster[] = {{9, 40, 128, 32768}};

bool sdpa_is_faster(const AttentionProblem& problem) {
  const bool wide = problem.q.scalar_type() == at::kFloat;
  // cuDNN's gradients are added up by atomics: their bits do not repeat.
  if (wide || problem.settings.deterministic) return false;
  if (problem.settings.causal && problem.settings.diagonal != 0)
    return false;  // needs a mask there
  const int major = cuda_capability_major(problem.q.device().index());
  const int64_t d = problem.q.size(-1), rows = rows_of_queries(problem);
  for (const Rule& rule : kSdpaIsFaster) {
    if (major == rule.capability_major && d >= rule.least_d && d <= rule.most_d &&
        rows >= rule.least_rows) {
      return true;
    }
  }
  return false;
}

// Where no measurement says otherwise: the device's own kernel, else PyTorch's, which takes any D.
std::string own_kernel_or_sdpa(const char* own, const AttentionProblem& problem,
                               bool with_logsumexp) {
  if (takes(own, problem)) return own;
  return with_logsumexp ? "naive" : "sdpa";
}

}  // namespace

std::string choose_attention(const AttentionProblem& problem, bool with_logsumexp) {
  if (problem.q.scalar_type() == at::kDouble) return "naive";
  if (problem.q.is_cpu()) return own_kernel_or_sdpa("cpu", problem, with_logsumexp);
  if (problem.q.is_cuda()) {
    if (!with_logsumexp && sdpa_is_faster(problem)) return "sdpa";
    return own_kernel_or_sdpa("cuda", problem, with_logsumexp);
  }
  return "tiled";  // shapes without data: any kernel's shape function
}

}  // namespace flashstep::internal
