// The CPU kernels behind tensors, on PyTorch's threads.
#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

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

attention_cpu::Forward forward_pass(const ForwardTensors& t, const AttentionSettings& settings) {
  return {kernel_problem(t.q, t.k, settings),
          kernel_input(t.q),
          kernel_input(t.k),
          kernel_input(t.v),
          kernel_output(t.out),
          t.logsumexp.data_ptr<float>()};
}

attention_cpu::Backward backward_pass(const BackwardTensors& t, const AttentionSettings& settings) {
  return {kernel_problem(t.q, t.k, settings),
          kernel_input(t.q),
          kernel_input(t.k),
          kernel_input(t.v),
          kernel_input(t.out),
          kernel_input(t.grad_out),
          t.logsumexp.const_data_ptr<float>(),
          t.grad_logsumexp.defined() ? t.grad_logsumexp.const_data_ptr<float>() : nullptr,
          kernel_output(t.grad_q),
          kernel_output(t.grad_k),
          kernel_output(t.grad_v)};
}

// The kernels know no documents: each is a pass of its own.
struct Document {
  int64_t batch, first, rows;

  // Of (B, H, N, ...).
  Tensor of(const Tensor& x) const {
    return x.defined() ? x.narrow(0, batch, 1).narrow(2, first, rows) : x;
  }
};

std::vector<Document> documents_of(const Tensor& spans) {
  const auto end_of = spans[1];
  const auto ends = end_of.accessor<int32_t, 2>();
  const int64_t n = spans.size(2);
  std::vector<Document> documents;
  for (int64_t batch = 0; batch < spans.size(1); ++batch) {
    for (int64_t first = 0; first < n;) {
      const int64_t end = std::clamp<int64_t>(ends[batch][first], first + 1, n);
      documents.push_back({batch, first, end - first});
      first = end;
    }
  }
  return documents;
}

// run(pass, threads) for each: the long ones one after the other by all threads, then the others
// side by side.
template <typename Pass, typename Run>
void run_all(const std::vector<Pass>& passes, const Run& run) {
  const attention_cpu::Parallel threads = torch_threads();
  const auto work = [](const Pass& pass) { return pass.problem.n * pass.problem.n; };
  int64_t all = 0;
  for (const Pass& pass : passes) all += work(pass);
  std::vector<const Pass*> others;
  for (const Pass& pass : passes) {
    if (work(pass) > all / (4 * threads.workers))
      run(pass, threads);
    else
      others.push_back(&pass);
  }
  threads.run(static_cast<int64_t>(others.size()),
              [&](int64_t at, int /*worker*/) { run(*others[at], torch_threads()); });
}

AttentionSettings of_one_document(AttentionSettings settings) {
  settings.documents = Tensor();
  return settings;
}

void cpu_forward(const ForwardTensors& t, const AttentionSettings& settings) {
  if (!settings.documents.defined())
    return attention_cpu::forward(forward_pass(t, settings), torch_threads());
  std::vector<attention_cpu::Forward> passes;
  std::vector<std::pair<Tensor, Tensor>> logsumexps;  // of a document, and where it belongs
  for (const Document& document : documents_of(settings.documents)) {
    const Tensor place = document.of(t.logsumexp);
    const Tensor& here =
        logsumexps.emplace_back(at::empty(place.sizes(), place.options()), place).first;
    passes.push_back(forward_pass(
        {document.of(t.q), document.of(t.k), document.of(t.v), document.of(t.out), here},
        of_one_document(settings)));
  }
  run_all(passes, attention_cpu::forward);
  for (const auto& [from, to] : logsumexps) to.copy_(from);
}

void cpu_backward(const BackwardTensors& t, const AttentionSettings& settings) {
  if (!settings.documents.defined())
    return attention_cpu::backward(backward_pass(t, settings), torch_threads());
  std::vector<attention_cpu::Backward> passes;
  std::vector<Tensor> kept;  // that passes point to
  const auto contiguous = [&](const Tensor& x) {
    return x.defined() ? kept.emplace_back(x.contiguous()) : x;
  };
  for (const Document& document : documents_of(settings.documents)) {
    BackwardTensors part = t;
    for (Tensor BackwardTensors::*x :
         {&BackwardTensors::q, &BackwardTensors::k, &BackwardTensors::v, &BackwardTensors::out,
          &BackwardTensors::grad_out, &BackwardTensors::grad_q, &BackwardTensors::grad_k,
          &BackwardTensors::grad_v})
      part.*x = document.of(t.*x);
    part.logsumexp = contiguous(document.of(t.logsumexp));
    part.grad_logsumexp = contiguous(document.of(t.grad_logsumexp));
    passes.push_back(backward_pass(part, of_one_document(settings)));
  }
  run_all(passes, attention_cpu::backward);
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
