// The CPU kernels behind tensors, on PyTorch's threads.
#include <algorithm>
#include <atomic>

#include <ATen/Parallel.h>

#include "flashstep/attention/cpu/kernels.h"
#include "flashstep/attention/implementations.h"
#include "flashstep/base/text.h"

namespace flashstep::internal {
namespace {

using at::Tensor;

std::string cpu_refusal(const Tensor& q, const Tensor&, const Tensor&) {
  if (!q.is_cpu()) return str("tensors on the CPU, got them on ", q.device().str());
  return kernel_refusal(q, /*dim_step=*/1);
}

void cpu_forward(const ForwardTensors& t, const AttentionSettings& settings) {
  attention_cpu::forward({kernel_problem(t.q, t.k, settings), kernel_input(t.q), kernel_input(t.k),
                          kernel_input(t.v), kernel_output(t.out), t.logsumexp.data_ptr<float>()},
                         torch_threads());
}

void cpu_backward(const BackwardTensors& t, const AttentionSettings& settings) {
  attention_cpu::backward(
      {kernel_problem(t.q, t.k, settings), kernel_input(t.q), kernel_input(t.k), kernel_input(t.v),
       kernel_input(t.out), kernel_input(t.grad_out), t.logsumexp.const_data_ptr<float>(),
       t.grad_logsumexp.defined() ? t.grad_logsumexp.const_data_ptr<float>() : nullptr,
       kernel_output(t.grad_q), kernel_output(t.grad_k), kernel_output(t.grad_v)},
      torch_threads());
}

}  // namespace

// Tasks are taken from a counter: under a causal mask they differ in length.
attention_cpu::Parallel torch_threads() {
  const int workers = at::in_parallel_region() ? 1 : at::get_num_threads();
  return {workers, [workers](int64_t tasks, const std::function<void(int64_t, int)>& body) {
            std::atomic<int64_t> next = 0;
            const int64_t used = std::min<int64_t>(workers, tasks);
            at::parallel_for(0, used, 1, [&](int64_t begin, int64_t end) {
              for (int64_t worker = begin; worker < end; ++worker) {
                for (int64_t task; (task = next++) < tasks;) body(task, static_cast<int>(worker));
              }
            });
          }};
}

const AttentionKernel kCpuKernel = {"cpu", cpu_refusal, cpu_forward, cpu_backward};

}  // namespace flashstep::internal
