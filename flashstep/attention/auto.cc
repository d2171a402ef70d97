// What "auto" takes: rules by device, dtype and shape, from measurements that are named here. They
// are never taken at run time, so that a run repeats bit for bit wherever it is repeated.
#include "flashstep/attention.h"
#include "flashstep/attention/cost.h"
#include "flashstep/attention/implementations.h"

namespace flashstep::internal {
namespace {

bool takes(const char* name, const AttentionProblem& problem) {
  const AttentionKernel* kernel = find_attention_kernel(name);
  return kernel != nullptr && kernel->refusal(problem.q, problem.k, problem.v).empty();
}

// Where PyTorch's kernels are faster than ours.
struct Rule {
  int capability_major;  // of the GPU
  int64_t least_d, most_d;
  int64_t least_heads;  // B H
  int64_t least_pairs;  // of a query and a key that it sees, over all heads
};

// Compute capability 9.0, bfloat16 (float16 has the same instructions): cuDNN's kernels, which
// scaled_dot_product_attention takes there, drive the matrix units by wgmma and win as soon as the
// work fills the GPU. One head fills it late, as cuDNN does not split its keys; with less work, and
// with D up to 32, ours win. From an H200: reports/attention_h200 (sweep.md and history.md), where
// `sweep` has 32 heads, `throughput` 64, `handout` one. Other GPUs are not measured: there ours is
// taken, as for float32.
constexpr Rule kSdpaIsFaster[] = {
    // sweep, forward, in graphs: 512 x 512 (2^23) 1.14x, 512 x 256 (2^22) 0.99x.
    {9, 40, 128, 32, int64_t{1} << 23},
    // handout, D 64, forward and backward: N 32768 (2^29) 1.11x and 1.39x, 16384 0.89x and 0.80x.
    {9, 40, 64, 1, int64_t{1} << 28},
    // handout, D 128: N 16384 (2^27) 1.10x and 1.08x, 8192 (2^25) 0.66x and 0.66x.
    {9, 72, 128, 1, int64_t{1} << 27},
};

int64_t pairs_of(const AttentionProblem& problem) {
  const auto& [scale, causal, diagonal, deterministic] = problem.settings;
  AttentionSize size;
  size.n = problem.q.size(-2);
  size.m = problem.k.size(-2);
  size.causal = causal;
  size.diagonal = diagonal;
  return visible_pairs(size);
}

bool sdpa_is_faster(const AttentionProblem& problem) {
  // Elsewhere than on the first key's diagonal PyTorch needs a mask in memory.
  if (problem.settings.causal && problem.settings.diagonal != 0) return false;
  if (!at::globalContext().userEnabledCuDNNSDP()) return false;  // the kernel that was measured
  // cuDNN adds gradients up by atomics: their bits do not repeat.
  if (problem.q.scalar_type() == at::kFloat || problem.settings.deterministic) return false;
  const int64_t d = problem.q.size(-1), heads = problem.q.numel() / (d * problem.q.size(-2));
  const int64_t pairs = heads * pairs_of(problem);
  const int major = cuda_capability_major(problem.q.device().index());
  for (const Rule& rule : kSdpaIsFaster) {
    if (major == rule.capability_major && d >= rule.least_d && d <= rule.most_d &&
        heads >= rule.least_heads && pairs >= rule.least_pairs) {
      return true;
    }
  }
  return false;
}

// Where no measurement says otherwise: the device's own kernel, else PyTorch's, which takes any D
// (on a GPU not with gradients that repeat).
std::string own_kernel_or_sdpa(const char* own, const AttentionProblem& problem,
                               bool with_logsumexp) {
  if (takes(own, problem)) return own;
  const bool repeats = problem.settings.deterministic && problem.q.is_cuda();
  return with_logsumexp || repeats ? "naive" : "sdpa";
}

}  // namespace

std::string choose_attention(const AttentionProblem& problem, bool with_logsumexp) {
  if (nothing_to_compute(problem) || problem.q.scalar_type() == at::kDouble) return "naive";
  if (problem.q.is_cpu()) return own_kernel_or_sdpa("cpu", problem, with_logsumexp);
  if (problem.q.is_cuda()) {
    if (!with_logsumexp && sdpa_is_faster(problem)) return "sdpa";
    return own_kernel_or_sdpa("cuda", problem, with_logsumexp);
  }
  return "tiled";  // shapes without data: any kernel's shape function
}

}  // namespace flashstep::internal
