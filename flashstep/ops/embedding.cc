#include <limits>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/cuda_kernels.h"
#include "flashstep/ops/differentiable_once.h"
#include "flashstep/ops/gradient_sum.h"
#include "flashstep/ops/internal.h"

namespace flashstep {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();  // ids are sorted as int32

// LibTorch adds up in the gradient's dtype on a CPU: in bfloat16 256 ones and another are 256.
bool is_short_on_cpu(const Tensor& weight) { return weight.is_cpu() && weight.element_size() == 2; }

class SummedInFloat32 : public torch::autograd::Function<SummedInFloat32> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& weight, const Tensor& ids) {
    context->save_for_backward({ids});
    context->saved_data["rows"] = weight.size(0);
    context->saved_data["dtype"] = static_cast<int64_t>(internal::gradient_dtype(weight));
    internal::keep_weight(context, weight);
    return at::embedding(weight, ids);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Tensor ids = context->get_saved_variables()[0].flatten();
    const Tensor dy = gradients[0].contiguous();
    const auto dtype = static_cast<at::ScalarType>(context->saved_data["dtype"].toInt());
    const int64_t rows = context->saved_data["rows"].toInt();
    const Tensor weight = dy.is_cuda() ? internal::weight_to_add_to(context) : Tensor();
    if (weight.defined()) {
      if (ids.numel() > 0) internal::embedding_backward_cuda(dy, ids, weight.grad(), /*adds=*/true);
      return {internal::take_gradient(weight), Tensor()};
    }
    Tensor dweight = at::zeros({rows, dy.size(-1)}, dy.options().dtype(dtype));
    if (dy.is_cpu()) {
      if (ids.numel() == 0) return {dweight, Tensor()};
      // Only the rows that are there, in float32.
      const auto [used, places, counts] = at::_unique2(ids, /*sorted=*/true, /*inverse=*/true);
      const Tensor sums =
          at::embedding_dense_backward(dy.to(at::kFloat), places, used.size(0), /*padding_idx=*/-1,
                                       /*scale_grad_by_freq=*/false);
      return {dweight.index_copy_(0, used, sums.to(dtype)), Tensor()};
    }
    internal::refuse_create_graph("embedding");
    if (ids.numel() > 0) internal::embedding_backward_cuda(dy, ids, dweight);
    return {dweight, Tensor()};
  }
};

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& ids) {
  require(weight.dim() == 2 && weight.is_floating_point() && ids.scalar_type() == at::kLong,
          "[embedding] expected weight (V, C) of a floating dtype and int64 ids, got ",
          weight.sizes(), " of ", weight.scalar_type(), " and ids of ", ids.scalar_type());
  internal::check_ids("embedding", "ids", ids, weight.size(0));
  const bool has_kernel = internal::has_cuda_kernel(weight) && weight.size(0) <= kMostRows;
  if (!has_kernel && !is_short_on_cpu(weight)) return at::embedding(weight, ids);
  return SummedInFloat32::apply(weight, ids);
}

}  // namespace flashstep
