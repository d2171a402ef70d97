#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/compute_copy.h"
#include "flashstep/ops/cost.h"
#include "flashstep/ops/cuda_kernels.h"
#include "flashstep/ops/internal.h"
#include "flashstep/products/product.h"
#include "flashstep/profiling.h"

namespace flashstep {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType product_dtype(const Tensor& x) {
  const auto device = x.device().type();
  const bool lowered = at::autocast::is_autocast_enabled(device) && x.scalar_type() != at::kDouble;
  return lowered ? at::autocast::get_autocast_dtype(device) : x.scalar_type();
}

// The gradients for a factor of 1 are made in forward, while a chunk's logits are there.
class FusedLinearCrossEntropy : public torch::autograd::Function<FusedLinearCrossEntropy> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x_any, const Tensor& weight_any,
                        const Tensor& targets_any, at::ScalarType dtype, bool wants_x,
                        bool wants_weight) {
    const int64_t width = x_any.size(-1), rows = targets_any.numel();
    const auto x = x_any.reshape({rows, width}).to(dtype);
    const auto weight =
        padded_rows(weight_any.is_leaf() ? compute_copy(weight_any, dtype) : weight_any.to(dtype));
    const int64_t classes = weight_any.size(0), padded = weight.size(0);
    const auto targets = targets_any.reshape({rows}).contiguous();
    const auto losses = at::empty({rows}, x.options().dtype(at::kFloat));
    const Tensor dx = wants_x ? at::empty_like(x) : Tensor();
    Tensor dweight;
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
        internal::cross_entropy_cuda(real, targets.narrow(0, begin, count),
                                     1.0 / static_cast<double>(rows),
                                     losses.narrow(0, begin, count),
                                     /*normalizers=*/{}, wants_x || wants_weight ? real : Tensor());
      }
      const ScopedRange range("head");
      if (wants_x) product(logits, weight, dx.narrow(0, begin, count));
      if (wants_weight) add_product(dweight, logits.t(), part, /*is_only=*/chunk == rows);
    }
    if (dweight.defined()) dweight = dweight.narrow(0, 0, classes);
    context->save_for_backward({dx, dweight});
    context->saved_data["shape"] = x_any.sizes().vec();
    context->saved_data["x_dtype"] = static_cast<int64_t>(x_any.scalar_type());
    context->saved_data["weight_dtype"] = static_cast<int64_t>(weight_any.scalar_type());
    return internal::mean_cuda(losses);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
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
    return {dx, scaled(saved[1], "weight_dtype"), Tensor(), Tensor(), Tensor(), Tensor()};
  }

 private:
  // With rows of zeros up to a multiple of 8: other products, for a vocabulary of 50,257 say, take
  // three to four times as long. The logits of those rows are nobody's, and their gradient is 0.
  static Tensor padded_rows(const Tensor& weight) {
    const int64_t rows = weight.size(0), padded = (rows + 7) / 8 * 8;
    if (padded == rows) return weight;
    const Tensor result = at::empty({padded, weight.size(1)}, weight.options());
    result.narrow(0, 0, rows).copy_(weight);
    result.narrow(0, rows, padded - rows).zero_();
    return result;
  }

  // sum += a b. Of a single chunk in the product's dtype, else in float32.
  static void add_product(Tensor& sum, const Tensor& a, const Tensor& b, bool is_only) {
    const Tensor before = sum;
    if (!sum.defined()) {
      const auto dtype = is_only ? a.scalar_type() : at::kFloat;
      sum = at::empty({a.size(0), b.size(1)}, a.options().dtype(dtype));
    }
    product(a, b, sum, before);
  }
};

}  // namespace

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets) {
  require(x.dim() >= 1 && x.is_floating_point() && weight.dim() == 2 &&
              weight.is_floating_point() && weight.size(1) == x.size(-1) && weight.size(0) > 0,
          "[linear_cross_entropy] expected x (..., C) and weight (V, C) of floating dtypes, got ",
          x.sizes(), " of ", x.scalar_type(), " and ", weight.sizes(), " of ",
          weight.scalar_type());
  internal::check_targets("linear_cross_entropy", targets, x.sizes().slice(0, x.dim() - 1),
                          weight.size(0));
  const auto dtype = product_dtype(x);
  // float16's gradient is scaled before it is rounded: by cross_entropy, in backward.
  const bool fused = internal::has_cuda_kernel(x) && weight.device() == x.device() &&
                     targets.device() == x.device() && targets.numel() > 0 && x.size(-1) > 0 &&
                     (dtype == at::kFloat || dtype == at::kBFloat16) &&
                     (dtype == x.scalar_type() || x.scalar_type() == at::kFloat);
  if (!fused) {
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
