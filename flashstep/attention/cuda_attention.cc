// The CUDA kernels behind tensors.
#include <deque>
#include <tuple>

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "flashstep/attention/cuda/kernels.h"
#include "flashstep/attention/implementations.h"
#include "flashstep/base/text.h"

namespace flashstep::internal {
namespace {

using at::Tensor;

constexpr int kFirstMajor = 8;  // cp.async and the bfloat16 tensor cores came with 8.0

std::string cuda_refusal(const Tensor& q, const Tensor&, const Tensor&) {
  if (!q.is_cuda()) return str("tensors on a GPU, got them on ", q.device().str());
  const auto* properties = at::cuda::getDeviceProperties(q.device().index());
  if (properties->major < kFirstMajor) {
    return str("a GPU of compute capability 8.0 or later, got ", properties->name, " with ",
               properties->major, ".", properties->minor);
  }
  return kernel_refusal(q, /*dim_step=*/8);
}

attention_cuda::Device current_device() {
  const auto* properties = at::cuda::getCurrentDeviceProperties();
#ifdef FLASHSTEP_SM_90A
  const bool warpgroups = properties->major == 9 && properties->minor == 0;
#else
  constexpr bool warpgroups = false;
#endif
  return {properties->multiProcessorCount, static_cast<int>(properties->sharedMemPerBlockOptin),
          static_cast<int>(properties->sharedMemPerMultiprocessor), warpgroups};
}

// The plan of a forward pass, kept for a thread's last shapes: to choose one takes the host up to
// 90 us, more than the kernel of a small one.
attention_cuda::ForwardPlan forward_plan(const attention_cuda::Problem& p) {
  const auto shape =
      std::make_tuple(c10::cuda::current_device(), p.element, p.batches, p.heads, p.kv_heads, p.n,
                      p.m, p.head_dim, p.causal, p.diagonal, p.window, p.tf32);
  struct Recent {
    decltype(shape) of;
    attention_cuda::ForwardPlan plan;
  };
  constexpr size_t kMost = 16;
  thread_local std::deque<Recent> recent;
  for (const Recent& one : recent)
    if (one.of == shape) return one.plan;
  if (recent.size() == kMost) recent.pop_front();
  recent.push_back({shape, attention_cuda::plan_forward(p, current_device())});
  return recent.back().plan;
}

// x itself where the kernels take it as it lies, else a copy.
Tensor aligned(const Tensor& x) {
  const auto whole = [&](int64_t bytes) { return bytes % attention_cuda::kAlignmentBytes == 0; };
  bool as_it_lies = whole(reinterpret_cast<intptr_t>(x.const_data_ptr()));
  for (int axis = 0; axis < 3; ++axis) {
    as_it_lies &= x.size(axis) == 1 || whole(x.stride(axis) * x.element_size());
  }
  return as_it_lies ? x : x.clone(at::MemoryFormat::Contiguous);
}

// Device memory for a pass, held by PyTorch's allocator on the current stream.
Tensor workspace(size_t bytes, const Tensor& like) {
  if (bytes == 0) return Tensor();
  const Tensor workspace =
      at::detail::empty_cuda({static_cast<int64_t>(bytes)}, like.options().dtype(at::kByte));
  // By the rule of at::empty, so that what is read before it is written shows: NaN in float32.
  const auto& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) {
    workspace.fill_(0xff);
  }
  return workspace;
}

void* data(const Tensor& x) { return x.defined() ? x.mutable_data_ptr() : nullptr; }

void forward(const ForwardTensors& t, const AttentionSettings& settings) {
  const c10::cuda::CUDAGuard guard(t.q.device());
  const Tensor q = aligned(t.q), k = aligned(t.k), v = aligned(t.v);
  const attention_cuda::Forward pass{kernel_problem(q, k, settings),
                                     kernel_input(q),
                                     kernel_input(k),
                                     kernel_input(v),
                                     kernel_output(t.out),
                                     t.logsumexp.data_ptr<float>()};
  const auto plan = forward_plan(pass.problem);
  const Tensor scratch = workspace(plan.workspace_bytes, q);
  C10_CUDA_CHECK(
      attention_cuda::forward(pass, plan, data(scratch), at::cuda::getCurrentCUDAStream()));
}

void backward(const BackwardTensors& t, const AttentionSettings& settings) {
  const c10::cuda::CUDAGuard guard(t.q.device());
  const Tensor q = aligned(t.q), k = aligned(t.k), v = aligned(t.v), out = aligned(t.out),
               grad_out = aligned(t.grad_out);
  const attention_cuda::Backward pass{
      kernel_problem(q, k, settings),
      kernel_input(q),
      kernel_input(k),
      kernel_input(v),
      kernel_input(out),
      kernel_input(grad_out),
      t.logsumexp.const_data_ptr<float>(),
      t.grad_logsumexp.defined() ? t.grad_logsumexp.const_data_ptr<float>() : nullptr,
      kernel_output(t.grad_q),
      kernel_output(t.grad_k),
      kernel_output(t.grad_v),
      t.cos.defined() ? t.cos.const_data_ptr<float>() : nullptr,
      t.sin.defined() ? t.sin.const_data_ptr<float>() : nullptr};
  const auto plan = attention_cuda::plan_backward(pass.problem, current_device());
  const Tensor scratch = workspace(plan.workspace_bytes(), q);
  C10_CUDA_CHECK(
      attention_cuda::backward(pass, plan, data(scratch), at::cuda::getCurrentCUDAStream()));
}

}  // namespace

const AttentionKernel kCudaKernel = {"cuda", cuda_refusal, forward, backward};

}  // namespace flashstep::internal
