#include <numeric>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/cuda_kernels.h"
#include "flashstep/ops/element.h"
#include "flashstep/ops/internal.h"
#include "flashstep/profiling.h"

namespace flashstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// On the CPU the gradient is made while the row of logits is in the cache, and saved instead of the
// logits.
class CpuCrossEntropy : public torch::autograd::Function<CpuCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits_any,
                            const at::Tensor& targets_any, bool wants_gradient) {
    const auto logits = logits_any.contiguous(), targets = targets_any.contiguous();
    const int64_t classes = logits.size(-1), rows = targets.numel();
    auto losses = at::empty({rows}, logits.options().dtype(at::kFloat));
    at::Tensor dlogits = wants_gradient ? at::empty_like(logits) : at::Tensor();
    const kernels::CrossEntropy arguments{logits.data_ptr(),
                                          wants_gradient ? dlogits.data_ptr() : nullptr,
                                          internal::element_of(logits),
                                          targets.data_ptr<int64_t>(),
                                          losses.data_ptr<float>(),
                                          classes,
                                          1.0f / static_cast<float>(rows)};
    at::parallel_for(0, rows, internal::grain_rows(classes), [&](int64_t begin, int64_t end) {
      kernels::cross_entropy(arguments, begin, end);
    });
    // One order of additions, in double: the loss does not depend on the number of threads.
    const float* values = losses.data_ptr<float>();
    const double total = std::accumulate(values, values + rows, 0.0);
    if (wants_gradient) context->save_for_backward({dlogits});
    return at::scalar_tensor(total / static_cast<double>(rows), losses.options());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto dlogits = context->get_saved_variables()[0];
    const double factor = gradients[0].item<double>();
    return {factor == 1.0 ? dlogits : dlogits * factor, at::Tensor(), at::Tensor()};
  }
};

// On a GPU backward computes the gradient from the logits: the factor that comes in is on the
// device and the host does not wait for it, and a float16 gradient is scaled before it is rounded.
class CudaCrossEntropy : public torch::autograd::Function<CudaCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits_any,
                            const at::Tensor& targets_any) {
    const auto logits = logits_any.contiguous(), targets = targets_any.contiguous();
    const auto options = logits.options().dtype(at::kFloat);
    const auto losses = at::empty({targets.numel()}, options);
    const auto normalizers = at::empty({targets.numel(), 2}, options);
    internal::cross_entropy_cuda(logits, targets, /*scale=*/1, losses, normalizers);
    context->save_for_backward({logits, targets, normalizers});
    return internal::mean_cuda(losses);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto &logits = saved[0], &targets = saved[1], &normalizers = saved[2];
    const auto dlogits = at::empty_like(logits);
    internal::cross_entropy_backward_cuda(logits, targets, normalizers,
                                          1.0 / static_cast<double>(targets.numel()),
                                          gradients[0].to(at::kFloat), dlogits);
    return {dlogits, at::Tensor()};
  }
};

}  // namespace

namespace internal {

void check_targets(const char* operation, const at::Tensor& targets, at::IntArrayRef shape,
                   int64_t classes) {
  require(targets.scalar_type() == at::kLong && targets.sizes() == shape, "[", operation,
          "] expected int64 targets of shape ", shape, ", got ", targets.sizes(), " of ",
          targets.scalar_type());
  if (!targets.is_cpu() || targets.numel() == 0) return;
  const auto [low, high] = at::aminmax(targets);
  require(low.item<int64_t>() >= 0 && high.item<int64_t>() < classes, "[", operation,
          "] expected targets in [0, ", classes, "), got ",
          low.item<int64_t>() < 0 ? low.item<int64_t>() : high.item<int64_t>());
}

}  // namespace internal

at::Tensor cross_entropy_reference(const at::Tensor& logits, const at::Tensor& targets) {
  const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto log_probabilities = at::log_softmax(logits.to(dtype), -1);
  return -log_probabilities.gather(-1, targets.unsqueeze(-1)).mean();
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  const ScopedRange range("loss");
  require(logits.dim() >= 1 && logits.is_floating_point() && logits.size(-1) > 0,
          "[cross_entropy] expected logits of shape (..., V) and a floating dtype, got ",
          logits.sizes(), " of ", logits.scalar_type());
  internal::check_targets("cross_entropy", targets, logits.sizes().slice(0, logits.dim() - 1),
                          logits.size(-1));
  if (targets.numel() == 0 || targets.device() != logits.device())
    return cross_entropy_reference(logits, targets);
  if (internal::has_cuda_kernel(logits)) return CudaCrossEntropy::apply(logits, targets);
  if (!internal::has_cpu_kernel(logits)) return cross_entropy_reference(logits, targets);
  const bool wants_gradient = at::GradMode::is_enabled() && logits.requires_grad();
  return CpuCrossEntropy::apply(logits, targets, wants_gradient);
}

}  // namespace flashstep
