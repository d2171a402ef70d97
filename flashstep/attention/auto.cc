// What "auto" takes: our kernels wherever they can be. Nothing is measured at run time, so that a
// run repeats bit for bit wherever it is repeated.
#include <string>

#include "flashstep/attention.h"
#include "flashstep/attention/implementations.h"

namespace flashstep::internal {
namespace {

bool takes(const char* name, const AttentionProblem& problem) {
  const AttentionKernel* kernel = find_attention_kernel(name);
  return kernel != nullptr && kernel->refusal(problem.q, problem.k, problem.v).empty();
}

// On a CPU PyTorch's kernel loses NaN: never it. With D above 256 it would take 0.5 to 0.85 of the
// time of tiled, whose memory grows with N only.
std::string choose_on_cpu(const AttentionProblem& problem) {
  return takes("cpu", problem) ? "cpu" : "tiled";
}

// On an H200 ours are as fast as cuDNN's or faster, forward and backward together, but for 8 of 96
// shapes, at most 7 % slower (reports/attention_h200/forward_and_order). Their bits repeat, cuDNN's
// gradients do not. Other GPUs are not measured.
std::string choose_on_gpu(const AttentionProblem& problem, bool with_logsumexp) {
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
