// What "auto" takes: rules by device, dtype and shape, from measurements that are named here. They
// are never taken at run time, so that a run repeats bit for bit wherever it is repeated.
#include <algorithm>
#include <cstdint>

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
  int64_t least_heads;                 // B H
  int64_t least_pairs;                 // of a query and a key that it sees, over all heads
  int64_t most_of_a_head = INT64_MAX;  // of them
};

// Compute capability 9.0, bfloat16 (float16 has the same instructions), D above 64: cuDNN's
// kernels, which scaled_dot_product_attention takes there. Up to D 64 ours win, or are within 3 %
// forward and backward, and repeat; forward alone, 32 heads of D 64, within 12 %. Other GPUs are
// not measured: there ours is taken, as for float32.
constexpr Rule kSdpaIsFaster[] = {
    // Many short heads: theirs start a tile faster, and our one pass backward saves little. Their
    // time over ours, forward and backward, D 128: 64 heads, full, N 1024 0.90; 128 heads, full,
    // N 512 and 1024 0.84 and 0.89, causal, N 1024 and 2048 0.95 and 0.92. 64 heads, causal, N 1024
    // 1.03. With 32 heads ours take at most 1.05 times as long (in graphs 1.11), and longer heads
    // are faster. An H100: reports/attention_h100.
    {9, 104, 128, 64, int64_t{1} << 26, int64_t{1} << 20},
    {9, 104, 128, 128, int64_t{1} << 25, int64_t{3} << 20},
    // Here ours have two passes, seven products where theirs make five. As soon as the work fills
    // the GPU; one head takes ours, whose keys cuDNN does not split. From an H200, of D 128 when it
    // had two passes: reports/attention_h200/warpgroups.
    {9, 72, 96, 32, int64_t{1} << 26},
    {9, 72, 96, 2, int64_t{1} << 28},
};

// cuDNN's grids have no more places: 70,000 heads of one batch fail.
constexpr int64_t kMostInGrid = 65535;

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
  const int64_t of_batch = problem.q.dim() > 2 ? problem.q.size(-3) : 1;
  if (std::max(of_batch, heads / of_batch) > kMostInGrid) return false;
  const int64_t of_head = pairs_of(problem), pairs = heads * of_head;
  const int major = cuda_capability_major(problem.q.device().index());
  for (const Rule& rule : kSdpaIsFaster) {
    if (major == rule.capability_major && d >= rule.least_d && d <= rule.most_d &&
        heads >= rule.least_heads && pairs >= rule.least_pairs && of_head <= rule.most_of_a_head) {
      return true;
    }
  }
  return false;
}

// On a CPU PyTorch's kernel loses NaN: never it. With D above 256 it would take 0.5 to 0.85 of the
// time of tiled, whose memory grows with N only.
std::string choose_on_cpu(const AttentionProblem& problem) {
  return takes("cpu", problem) ? "cpu" : "tiled";
}

std::string choose_on_gpu(const AttentionProblem& problem, bool with_logsumexp) {
  if (!with_logsumexp && sdpa_is_faster(problem)) return "sdpa";
  if (takes("cuda", problem)) return "cuda";
  // PyTorch's takes any D, but its gradients need not repeat.
  return with_logsumexp || problem.settings.deterministic ? "naive" : "sdpa";
}

}  // namespace

std::string choose_attention(const AttentionProblem& problem, bool with_logsumexp) {
  if (nothing_to_compute(problem) || problem.q.scalar_type() == at::kDouble) return "naive";
  if (problem.q.is_cpu()) return choose_on_cpu(problem);
  if (problem.q.is_cuda()) return choose_on_gpu(problem, with_logsumexp);
  return "tiled";  // shapes without data: any kernel's shape function
}

}  // namespace flashstep::internal
