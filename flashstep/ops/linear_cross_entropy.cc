#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/compute_copy.h"
#include "flashstep/ops/cost.h"
#include "flashstep/ops/cuda_kernels.h"
#include "flashstep/ops/differentiable_once.h"
#include "flashstep/ops/gradient_sum.h"
#include "flashstep/ops/internal.h"
#include "flashstep/ops/passes.h"
#include "flashstep/products/cpu_product.h"
#include "flashstep/products/product.h"
#include "flashstep/profiling.h"

namespace flashstep {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// With rows of zeros up to a multiple of 8: other products, for a vocabulary of 50,257 say, take
// three to four times as long. The logits of those rows are nobody's, and their gradient is 0.
Tensor padded_rows(const Tensor& weight) {
  const int64_t rows = weight.size(0), padded = (rows + 7) / 8 * 8;
  if (padded == rows) return weight;
  const Tensor result = at::empty({padded, weight.size(1)}, weight.options());
  result.narrow(0, 0, rows).copy_(weight);
  result.narrow(0, rows, padded - rows).zero_();
  return result;
}

// sum += a b. Of a single chunk, if that may be narrow, in the product's dtype, else in float32.
void add_product(Tensor& sum, const Tensor& a, const Tensor& b, bool is_narrow) {
  const Tensor before = sum;
  if (!sum.defined()) {
    const auto dtype = is_narrow ? a.scalar_type() : at::kFloat;
    sum = at::empty({a.size(0), b.size(1)}, a.options().dtype(dtype));
  }
  product(a, b, sum, before);
}

struct LossAndGradients {
  Tensor loss, dx, dweight;  // for a factor of 1; undefined where not wanted
};

// x (rows, C), weight (V, C); a chunk's gradients are made while its logits are there.
LossAndGradients by_chunks(const Tensor& x, const Tensor& weight_any, const Tensor& targets,
                           bool wants_x, bool wants_weight, bool may_be_narrow) {
  const int64_t rows = x.size(0), classes = weight_any.size(0);
  const Tensor weight = padded_rows(weight_any);
  const int64_t padded = weight.size(0);
  const auto losses = at::empty({rows}, x.options().dtype(at::kFloat));
  const Tensor counted = internal::counted_cuda(targets);
  LossAndGradients made;
  if (wants_x) made.dx = at::empty(x.sizes(), x.options());
  const int64_t chunk = linear_cross_entropy_rows(rows, padded, x.element_size());
  const Tensor room = at::empty({chunk, padded}, x.options());
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const auto part = x.narrow(0, begin, count), logits = room.narrow(0, 0, count);
    {
      const ScopedRange range("head");
      product(part, weight.t(), logits);
    }
    {
      const ScopedRange range("loss");
      const Tensor real = logits.narrow(1, 0, classes);
      internal::cross_entropy_cuda(real, targets.narrow(0, begin, count), counted,
                                   losses.narrow(0, begin, count),
                                   /*normalizers=*/{}, wants_x || wants_weight ? real : Tensor());
    }
    const ScopedRange range("head");
    if (wants_x) product(logits, weight, made.dx.narrow(0, begin, count));
    if (wants_weight) add_product(made.dweight, logits.t(), part, may_be_narrow && chunk == rows);
  }
  if (made.dweight.defined()) made.dweight = made.dweight.narrow(0, 0, classes);
  made.loss = internal::mean_cuda(losses, counted);
  return made;
}

// The same of a CPU.
LossAndGradients by_chunks_on_cpu(const Tensor& x, const Tensor& weight, const Tensor& targets,
                                  bool wants_x, bool wants_weight) {
  const int64_t rows = x.size(0), classes = weight.size(0);
  const bool is_wide = x.scalar_type() == at::kFloat;
  LossAndGradients made;
  if (wants_x) made.dx = at::empty(x.sizes(), x.options());
  if (wants_weight) made.dweight = at::empty(weight.sizes(), x.options().dtype(at::kFloat));
  const int64_t chunk = linear_cross_entropy_rows_on_cpu(rows, classes);
  const Tensor room = at::empty({chunk, classes}, x.options());
  const double counted = internal::counted_of(targets);
  double losses = 0;
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const Tensor part = x.narrow(0, begin, count), logits = room.narrow(0, 0, count);
    {
      const ScopedRange range("head");
      internal::cpu_product(part, weight.t(), logits);
    }
    {
      const ScopedRange range("loss");
      losses += internal::cross_entropy_on_cpu(logits, targets.narrow(0, begin, count), counted,
                                               wants_x || wants_weight ? logits : Tensor());
    }
    const ScopedRange range("head");
    if (wants_x) internal::cpu_product(logits, weight, made.dx.narrow(0, begin, count));
    if (!wants_weight) continue;
    if (is_wide) {
      internal::cpu_product(logits.t(), part, made.dweight, /*adds=*/begin > 0);
    } else {
      const Tensor sum = at::mm(logits.t(), part);
      begin == 0 ? made.dweight.copy_(sum) : made.dweight.add_(sum);
    }
  }
  made.loss = at::scalar_tensor(losses / counted, x.options().dtype(at::kFloat));
  return made;
}

// The gradients for a factor of 1 are made in forward.
class FusedLinearCrossEntropy : public torch::autograd::Function<FusedLinearCrossEntropy> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x_any, const Tensor& weight_any,
                        const Tensor& targets_any, at::ScalarType dtype, bool wants_x,
                        bool wants_weight) {
    const int64_t width = x_any.size(-1), rows = targets_any.numel();
    const Tensor weight =
        weight_any.is_leaf() ? compute_copy(weight_any, dtype) : weight_any.to(dtype);
    const Tensor x = x_any.reshape({rows, width}).to(dtype);
    const Tensor targets = targets_any.reshape({rows}).contiguous();
    const LossAndGradients made =
        x.is_cuda() ? by_chunks(x, weight, targets, wants_x, wants_weight, /*may_be_narrow=*/true)
                    : by_chunks_on_cpu(x, weight, targets, wants_x, wants_weight);
    context->save_for_backward({made.dx, made.dweight});
    context->saved_data["shape"] = x_any.sizes().vec();
    context->saved_data["x_dtype"] = static_cast<int64_t>(x_any.scalar_type());
    context->saved_data["weight_dtype"] = static_cast<int64_t>(weight_any.scalar_type());
    internal::keep_weight(context, weight_any);
    return made.loss;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    internal::refuse_create_graph("linear_cross_entropy");
    const auto saved = context->get_saved_variables();
    // A matrix of one element: multiplied in float32, where a number would be rounded to bfloat16.
    const auto factor = gradients[0].to(at::kFloat).view({1, 1});
    const auto scaled = [&](const Tensor& gradient, const char* dtype) {
      if (!gradient.defined()) return Tensor();
      return (gradient * factor)
          .to(static_cast<at::ScalarType>(context->saved_data[dtype].toInt()));
    };
    Tensor dx = scaled(saved[0], "x_dtype");
    if (dx.defined()) dx = dx.view(context->saved_data["shape"].toIntVector());
    const bool may_add = saved[1].defined() && saved[1].is_cuda();
    const Tensor weight = may_add ? internal::weight_to_add_to(context) : Tensor();
    if (weight.defined()) {
      weight.mutable_grad().addcmul_(saved[1], factor);
      return {dx, internal::take_gradient(weight), Tensor(), Tensor(), Tensor(), Tensor()};
    }
    return {dx, scaled(saved[1], "weight_dtype"), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

void check(const Tensor& x, const Tensor& weight, const Tensor& targets) {
  require(x.dim() >= 1 && x.is_floating_point() && weight.dim() == 2 &&
              weight.is_floating_point() && weight.size(1) == x.size(-1) && weight.size(0) > 0,
          "[linear_cross_entropy] expected x (..., C) and weight (V, C) of floating dtypes, got ",
          x.sizes(), " of ", x.scalar_type(), " and ", weight.sizes(), " of ",
          weight.scalar_type());
  internal::check_targets("linear_cross_entropy", targets, x.sizes().slice(0, x.dim() - 1),
                          weight.size(0));
}

}  // namespace

namespace internal {

// float16's gradient is scaled before it is rounded: by cross_entropy, in backward. On a CPU
// linear() knows who multiplies 16 bits.
bool has_linear_cross_entropy_pass(const Tensor& x, const Tensor& weight, const Tensor& targets,
                                   at::ScalarType dtype) {
  if (x.is_cpu()) {
    return weight.is_cpu() && targets.is_cpu() && dtype == at::kFloat &&
           x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat;
  }
  return has_cuda_kernel(x) && weight.device() == x.device() && targets.device() == x.device() &&
         (dtype == at::kFloat || dtype == at::kBFloat16) &&
         (dtype == x.scalar_type() || x.scalar_type() == at::kFloat);
}

std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy_forward(const Tensor& x_any,
                                                                const Tensor& weight_any,
                                                                const Tensor& targets_any,
                                                                at::ScalarType dtype, bool wants_x,
                                                                bool wants_weight) {
  check(x_any, weight_any, targets_any);
  const int64_t width = x_any.size(-1), rows = targets_any.numel();
  require(rows > 0 && width > 0 && (dtype == at::kFloat || dtype == at::kBFloat16),
          "[linear_cross_entropy] expected rows of float32 or bfloat16, got ", x_any.sizes(),
          " of ", dtype);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Tensor x = x_any.reshape({rows, width}).to(dtype);
  const Tensor targets = targets_any.reshape({rows}).contiguous();
  const Tensor weight = weight_any.to(dtype);
  LossAndGradients made =
      x.is_cuda() ? by_chunks(x, weight, targets, wants_x, wants_weight, /*may_be_narrow=*/false)
                  : by_chunks_on_cpu(x, weight, targets, wants_x, wants_weight);
  if (made.dx.defined()) made.dx = made.dx.view(x_any.sizes());
  if (made.dweight.defined()) made.dweight = made.dweight.contiguous();
  return {made.loss, made.dx, made.dweight};
}

}  // namespace internal

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets) {
  check(x, weight, targets);
  const auto dtype = internal::dtype_under_autocast(x);
  if (!internal::has_linear_cross_entropy_pass(x, weight, targets, dtype) || targets.numel() == 0 ||
      x.size(-1) == 0) {
    const auto logits = [&] {
      const ScopedRange range("head");
      return flashstep::linear(x, weight);
    }();
    return cross_entropy(logits, targets);
  }
  const bool graph = at::GradMode::is_enabled();
  // Inside, products are asked for in their dtypes.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return FusedLinearCrossEntropy::apply(x, weight, targets, dtype, graph && x.requires_grad(),
                                        graph && weight.requires_grad());
}

}  // namespace flashstep
