#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/cuda_kernels.h"
#include "flashstep/ops/differentiable_once.h"
#include "flashstep/ops/element.h"
#include "flashstep/ops/passes.h"

namespace flashstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 16384;  // elements

at::Tensor as_row(const at::Tensor& x) { return x.view({1, x.numel()}); }

// Saves a and b, not silu(a): the exponential is cheaper than reading it back.
class FusedSwiglu : public torch::autograd::Function<FusedSwiglu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& a_any,
                            const at::Tensor& b_any) {
    const auto a = a_any.contiguous(), b = b_any.contiguous();
    const auto y = internal::swiglu_forward(a, b);
    context->save_for_backward({a, b});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    internal::refuse_create_graph("swiglu");
    const auto saved = context->get_saved_variables();
    const auto [da, db] = internal::swiglu_backward(gradients[0], saved[0], saved[1]);
    return {da, db};
  }
};

}  // namespace

namespace internal {

at::Tensor swiglu_forward(const at::Tensor& a_any, const at::Tensor& b_any) {
  const auto a = a_any.contiguous(), b = b_any.contiguous();
  auto y = at::empty_like(a);
  if (a.is_cuda()) {
    swiglu_forward_cuda(as_row(a), as_row(b), y);
    return y;
  }
  const kernels::SwigluForward arguments{a.data_ptr(), b.data_ptr(), y.data_ptr(), element_of(a)};
  at::parallel_for(0, a.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernels::swiglu_forward(arguments, begin, end);
  });
  return y;
}

std::pair<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& dy_any, const at::Tensor& a_any,
                                                  const at::Tensor& b_any) {
  const auto dy = dy_any.contiguous(), a = a_any.contiguous(), b = b_any.contiguous();
  auto da = at::empty_like(a), db = at::empty_like(b);
  if (a.is_cuda()) {
    swiglu_backward_cuda(as_row(a), as_row(b), dy, as_row(da), as_row(db));
    return {da, db};
  }
  const kernels::SwigluBackward arguments{a.data_ptr(),  b.data_ptr(),  dy.data_ptr(),
                                          da.data_ptr(), db.data_ptr(), element_of(a)};
  at::parallel_for(0, a.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernels::swiglu_backward(arguments, begin, end);
  });
  return {da, db};
}

}  // namespace internal

at::Tensor swiglu_reference(const at::Tensor& a, const at::Tensor& b) {
  const auto promoted = at::promote_types(a.scalar_type(), b.scalar_type());
  const auto dtype = promoted == at::kDouble ? at::kDouble : at::kFloat;
  return (at::silu(a.to(dtype)) * b.to(dtype)).to(promoted);
}

at::Tensor swiglu(const at::Tensor& a, const at::Tensor& b) {
  require(a.is_floating_point() && b.is_floating_point() && a.sizes() == b.sizes(),
          "[swiglu] expected a and b of one shape and floating dtypes, got ", a.sizes(), " of ",
          a.scalar_type(), " and ", b.sizes(), " of ", b.scalar_type());
  if (a.scalar_type() != b.scalar_type()) {
    const auto dtype = at::promote_types(a.scalar_type(), b.scalar_type());
    return swiglu(a.to(dtype), b.to(dtype));
  }
  const bool has_kernel = internal::has_cpu_kernel(a) || internal::has_cuda_kernel(a);
  if (!has_kernel || b.device() != a.device()) return swiglu_reference(a, b);
  return FusedSwiglu::apply(a, b);
}

}  // namespace flashstep
