// The kernels of this build, and how tensors reach them.
#include "flashstep/attention/implementations.h"
#include "flashstep/base/text.h"
#include "flashstep/products/product.h"

namespace flashstep::internal {

const AttentionKernel* find_attention_kernel(std::string_view name) {
  for (const AttentionKernel* kernel : {&kTiledKernel, &kCpuKernel, &kCudaKernel}) {
    if (kernel->forward != nullptr && name == kernel->name) return kernel;
  }
  return nullptr;
}

at::Tensor with_dimensions(const at::Tensor& x, int64_t rank) {
  at::Tensor view = x;
  while (view.dim() < rank) view = view.unsqueeze(0);
  return view.dim() > rank ? view.flatten(0, view.dim() - rank) : view;
}

std::string kernel_refusal(const at::Tensor& q, int64_t dim_step) {
  const auto dtype = q.scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) {
    return str("float32, bfloat16 or float16, got ", c10::toString(dtype));
  }
  const int64_t d = q.size(-1);
  if (d % dim_step != 0 || d < 1 || d > 256) {
    const std::string steps = dim_step > 1 ? str(" in steps of ", dim_step) : "";
    return str("a head dim D from ", dim_step, " to 256", steps, ", got ", d);
  }
  return "";
}

attention_kernel::Problem kernel_problem(const at::Tensor& q, const at::Tensor& k,
                                         const AttentionSettings& settings) {
  attention_kernel::Problem problem{};
  problem.element = q.scalar_type() == at::kFloat      ? attention_kernel::Element::kFloat32
                    : q.scalar_type() == at::kBFloat16 ? attention_kernel::Element::kBfloat16
                                                       : attention_kernel::Element::kFloat16;
  problem.batches = q.size(0);
  problem.heads = q.size(1);
  problem.kv_heads = k.size(1);
  problem.n = q.size(2);
  problem.m = k.size(2);
  problem.head_dim = static_cast<int>(q.size(3));
  problem.scale = static_cast<float>(settings.scale);
  problem.causal = settings.causal;
  problem.diagonal = settings.diagonal;
  problem.window = settings.window.value_or(attention_kernel::kNoWindow);
  problem.deterministic = settings.deterministic;
  problem.documents =
      settings.documents.defined() ? settings.documents.const_data_ptr<int32_t>() : nullptr;
  problem.tf32 = q.is_cuda() && q.scalar_type() == at::kFloat && rounds_to_tf32();
  return problem;
}

attention_kernel::Input kernel_input(const at::Tensor& x) {
  return {x.const_data_ptr(), {x.stride(0), x.stride(1), x.stride(2)}};
}

attention_kernel::Output kernel_output(const at::Tensor& x) {
  return {x.mutable_data_ptr(), {x.stride(0), x.stride(1), x.stride(2)}};
}

}  // namespace flashstep::internal
