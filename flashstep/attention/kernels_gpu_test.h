// For tests of the CUDA kernels: both passes by plans of the test's own.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

#include "flashstep/attention/attention_test.h"
#include "flashstep/attention/cuda/kernels.h"
#include "flashstep/attention/implementations.h"
#include "flashstep/testing/gpus.h"

namespace flashstep::attention_testing {

inline at::Tensor not_a_number(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::full(sizes, NAN, at::TensorOptions(testing::kGpu).dtype(dtype));
}

using PlanForward = std::function<attention_cuda::ForwardPlan(const attention_cuda::Problem&,
                                                              const attention_cuda::Device&)>;
using PlanBackward = std::function<attention_cuda::BackwardPlan(const attention_cuda::Problem&,
                                                                const attention_cuda::Device&)>;

// Both passes as they are cut for `device`, which need not be the GPU that runs them. What is to be
// written, and the workspace, is NaN before. angles: by which q and k have been turned, whose
// gradients are then those of what they were before.
inline Results run_as(const attention_cuda::Device& device, const Inputs& x,
                      const AttentionOptions& options,
                      const PlanForward& plan_forward = attention_cuda::plan_forward,
                      const PlanBackward& plan_backward = attention_cuda::plan_backward,
                      std::optional<int64_t> given_diagonal = {}, const at::Tensor& angles = {}) {
  const at::Tensor q = x.q, k = x.k, v = x.v, grad_out = x.grad_out;
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  const int64_t diagonal = given_diagonal.value_or(options.align_last ? k.size(2) - q.size(2) : 0);
  const auto problem =
      internal::kernel_problem(q, k,
                               {scale, options.causal, diagonal, options.window,
                                options.deterministic.value_or(false), options.documents});
  const auto strided = [&](const at::Tensor& like) {  // rows are not one after the other
    std::vector<int64_t> sizes = like.sizes().vec();
    sizes.back() += 16;
    return not_a_number(sizes, like.scalar_type()).narrow(-1, 8, like.size(-1));
  };
  Results to{strided(q), not_a_number(q.sizes().slice(0, 3), at::kFloat), strided(q), strided(k),
             strided(k)};
  const auto workspace = [](size_t bytes) {
    return not_a_number({static_cast<int64_t>(bytes / sizeof(float))}, at::kFloat);
  };
  const auto stream = at::cuda::getCurrentCUDAStream();
  using internal::kernel_input;
  using internal::kernel_output;
  const auto forward_plan = plan_forward(problem, device);
  const at::Tensor of_forward = workspace(forward_plan.workspace_bytes);
  C10_CUDA_CHECK(
      attention_cuda::forward({problem, kernel_input(q), kernel_input(k), kernel_input(v),
                               kernel_output(to.out), to.logsumexp.data_ptr<float>()},
                              forward_plan, of_forward.mutable_data_ptr(), stream));
  const at::Tensor cos = angles.defined() ? angles.cos() : at::Tensor(),
                   sin = angles.defined() ? angles.sin() : at::Tensor();
  const auto backward_plan = plan_backward(problem, device);
  const at::Tensor of_backward = workspace(backward_plan.workspace_bytes());
  C10_CUDA_CHECK(attention_cuda::backward(
      {problem, kernel_input(q), kernel_input(k), kernel_input(v), kernel_input(to.out),
       kernel_input(grad_out), to.logsumexp.const_data_ptr<float>(), nullptr,
       kernel_output(to.grad_q), kernel_output(to.grad_k), kernel_output(to.grad_v),
       angles.defined() ? cos.const_data_ptr<float>() : nullptr,
       angles.defined() ? sin.const_data_ptr<float>() : nullptr},
      backward_plan, of_backward.mutable_data_ptr(), stream));
  return to;
}

// Angles (rows, d / 2) of both signs.
inline at::Tensor random_angles(int64_t rows, int64_t d) {
  return at::randn({rows, d / 2}, at::TensorOptions(testing::kGpu).dtype(at::kFloat)).mul_(3);
}

// The reference where q and k are what rope made by these angles: gradients of what it turned.
inline Reference turned_back(Reference reference, const at::Tensor& angles) {
  const auto turn = [&](const at::Tensor& gradient, bool is_magnitude) {
    const auto wide = gradient.to(at::kDouble), even = wide.slice(-1, 0, {}, 2),
               odd = wide.slice(-1, 1, {}, 2);
    const auto of_rows = angles.narrow(0, 0, gradient.size(-2)).to(at::kDouble);
    const auto cos = of_rows.cos(), sin = of_rows.sin();
    if (is_magnitude) {
      const auto both = at::hypot(even, odd);
      return at::stack({both, both}, -1).flatten(-2);
    }
    return at::stack({cos * even + sin * odd, cos * odd - sin * even}, -1).flatten(-2);
  };
  for (Results* const results : {&reference.oracle, &reference.naive}) {
    results->grad_q = turn(results->grad_q, false);
    results->grad_k = turn(results->grad_k, false);
  }
  reference.magnitudes.q = turn(reference.magnitudes.q, true);
  reference.magnitudes.k = turn(reference.magnitudes.k, true);
  return reference;
}

}  // namespace flashstep::attention_testing
