#include <numeric>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/cuda_kernels.h"
#include "flashstep/ops/differentiable_once.h"
#include "flashstep/ops/element.h"
#include "flashstep/ops/internal.h"
#include "flashstep/ops/passes.h"
#include "flashstep/profiling.h"

namespace flashstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits_any,
                            const at::Tensor& targets_any, bool wants_gradient) {
    const auto logits = logits_any.contiguous(), targets = targets_any.contiguous();
    const auto [loss, saved] = internal::cross_entropy_forward(logits, targets, wants_gradient);
    // On the CPU all that backward needs is in `saved`.
    if (wants_gradient)
      context->save_for_backward({logits.is_cuda() ? logits : at::Tensor(), targets, saved});
    return loss;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    internal::refuse_create_graph("cross_entropy");
    const auto saved = context->get_saved_variables();
    return {internal::cross_entropy_backward(gradients[0], saved[0], saved[1], saved[2]),
            at::Tensor(), at::Tensor()};
  }
};

}  // namespace

namespace internal {

void check_ids(const char* operation, const char* what, const at::Tensor& ids, int64_t end) {
  if (!ids.is_cpu() || ids.numel() == 0) return;
  const auto [low, high] = at::aminmax(ids);
  require(low.item<int64_t>() >= 0 && high.item<int64_t>() < end, "[", operation, "] expected ",
          what, " in [0, ", end, "), got ",
          low.item<int64_t>() < 0 ? low.item<int64_t>() : high.item<int64_t>());
}

void check_targets(const char* operation, const at::Tensor& targets, at::IntArrayRef shape,
                   int64_t classes) {
  require(targets.scalar_type() == at::kLong && targets.sizes() == shape, "[", operation,
          "] expected int64 targets of shape ", shape, ", got ", targets.sizes(), " of ",
          targets.scalar_type());
  if (!targets.is_cpu() || targets.numel() == 0) return;
  const bool may_ignore = targets.min().item<int64_t>() == kIgnoredTarget;
  check_ids(operation, "targets", may_ignore ? targets.masked_select(is_counted(targets)) : targets,
            classes);
}

at::Tensor is_counted(const at::Tensor& targets) { return targets != kIgnoredTarget; }

double counted_of(const at::Tensor& targets) {
  return static_cast<double>(is_counted(targets).sum().item<int64_t>());
}

double cross_entropy_on_cpu(const at::Tensor& logits, const at::Tensor& targets, double counted,
                            const at::Tensor& dlogits) {
  const int64_t classes = logits.size(-1), rows = targets.numel();
  const auto losses = at::empty({rows}, logits.options().dtype(at::kFloat));
  const kernels::CrossEntropy arguments{
      logits.data_ptr(),        dlogits.defined() ? dlogits.data_ptr() : nullptr,
      element_of(logits),       targets.data_ptr<int64_t>(),
      losses.data_ptr<float>(), classes,
      kIgnoredTarget,           1.0f / static_cast<float>(counted)};
  at::parallel_for(0, rows, grain_rows(classes), [&](int64_t begin, int64_t end) {
    kernels::cross_entropy(arguments, begin, end);
  });
  // One order of additions, in double: the loss does not depend on the number of threads.
  const float* values = losses.data_ptr<float>();
  return std::accumulate(values, values + rows, 0.0);
}

// On the CPU the gradient is made while the row of logits is in the cache, and saved instead of the
// logits. On a GPU backward computes the gradient from the logits: the factor that comes in is on
// the device and the host does not wait for it, and a float16 gradient is scaled before it is
// rounded.
std::pair<at::Tensor, at::Tensor> cross_entropy_forward(const at::Tensor& logits_any,
                                                        const at::Tensor& targets_any,
                                                        bool wants_gradient) {
  const auto logits = logits_any.contiguous(), targets = targets_any.contiguous();
  const auto options = logits.options().dtype(at::kFloat);
  if (logits.is_cuda()) {
    const auto losses = at::empty({targets.numel()}, options), counted = counted_cuda(targets);
    const auto normalizers = at::empty({targets.numel(), 2}, options);
    cross_entropy_cuda(logits, targets, counted, losses, normalizers);
    return {mean_cuda(losses, counted), normalizers};
  }
  const double counted = counted_of(targets);
  const auto dlogits = wants_gradient ? at::empty_like(logits) : at::Tensor();
  const double sum = cross_entropy_on_cpu(logits, targets, counted, dlogits);
  return {at::scalar_tensor(sum / counted, options), dlogits};
}

at::Tensor cross_entropy_backward(const at::Tensor& dloss, const at::Tensor& logits,
                                  const at::Tensor& targets, const at::Tensor& saved) {
  if (!saved.is_cuda()) {
    const double factor = dloss.item<double>();
    return factor == 1.0 ? saved : saved * factor;
  }
  const auto dlogits = at::empty_like(logits);
  cross_entropy_backward_cuda(logits, targets, saved, counted_cuda(targets), dloss.to(at::kFloat),
                              dlogits);
  return dlogits;
}

}  // namespace internal

at::Tensor cross_entropy_reference(const at::Tensor& logits, const at::Tensor& targets) {
  const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto log_probabilities = at::log_softmax(logits.to(dtype), -1);
  const auto counted = internal::is_counted(targets);
  const auto of_targets =
      log_probabilities.gather(-1, targets.masked_fill(~counted, 0).unsqueeze(-1)).squeeze(-1);
  return -at::where(counted, of_targets, 0).sum() / counted.sum();
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
  if (!internal::has_pass(logits)) return cross_entropy_reference(logits, targets);
  const bool wants_gradient = at::GradMode::is_enabled() && logits.requires_grad();
  return CrossEntropy::apply(logits, targets, wants_gradient);
}

}  // namespace flashstep
