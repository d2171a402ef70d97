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

// The stated rule where no measurement says otherwise: the device's own kernel, else PyTorch's,
// which takes any D.
std::string own_kernel_or_sdpa(const char* own, const AttentionProblem& problem,
                               bool with_logsumexp) {
  if (takes(own, problem)) return own;
  return with_logsumexp ? "naive" : "sdpa";
}

}  // namespace

std::string choose_attention(const AttentionProblem& problem, bool with_logsumexp) {
  if (problem.q.scalar_type() == at::kDouble) return "naive";
  if (problem.q.is_cpu()) return own_kernel_or_sdpa("cpu", problem, with_logsumexp);
  if (problem.q.is_cuda()) return own_kernel_or_sdpa("cuda", problem, with_logsumexp);
  return "tiled";  // shapes without data: any kernel's shape function
}

}  // namespace flashstep::internal
