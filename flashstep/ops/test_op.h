// What the operators' tests share: an operator beside its formula, and its gradient by differences.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "flashstep/testing/compare.h"

namespace flashstep::testing {

using Op = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// Output and gradients of op at `inputs` rounded to `dtype` and then computed in `compute`; the
// gradient that comes in is a fixed function of the output's shape, and not 0 for a number.
inline std::vector<at::Tensor> run(const Op& op, const std::vector<at::Tensor>& inputs,
                                   at::ScalarType dtype, at::ScalarType compute) {
  std::vector<at::Tensor> x;
  for (const auto& t : inputs) {
    x.push_back(
        t.to(dtype).to(compute).detach().clone(at::MemoryFormat::Preserve).requires_grad_());
  }
  const auto y = op(x);
  const auto places = at::arange(y.numel(), y.options().dtype(at::kDouble)).view(y.sizes());
  const auto dy = (y.dim() == 0 ? at::full_like(places, 0.75) : at::sin(places)).to(dtype);
  y.backward(dy.to(y.scalar_type()));
  std::vector<at::Tensor> results = {y.detach()};
  for (const auto& t : x) results.push_back(t.grad());
  return results;
}

// One rounding of 1.
inline double unit_of(at::ScalarType dtype) {
  return dtype == at::kFloat ? 6e-7 : dtype == at::kHalf ? 1e-3 : 8e-3;
}

// The fused op in each dtype against the reference in float64, and against the reference in the
// same dtype by the twice-naive rule; on the inputs' device.
inline void expect_agreement(const Op& fused, const Op& reference,
                             const std::vector<at::Tensor>& inputs, const std::string& what,
                             const std::vector<at::ScalarType>& dtypes = {at::kFloat,
                                                                          at::kBFloat16}) {
  for (const auto dtype : dtypes) {
    const auto got = run(fused, inputs, dtype, dtype), naive = run(reference, inputs, dtype, dtype),
               oracle = run(reference, inputs, dtype, at::kDouble);
    for (size_t i = 0; i < got.size(); ++i) {
      if (oracle[i].numel() == 0) continue;
      EXPECT_EQ(got[i].scalar_type(), naive[i].scalar_type()) << what;
      EXPECT_EQ(got[i].device(), inputs.front().device()) << what;
      const double largest = oracle[i].abs().max().item<double>();
      EXPECT_TRUE(within_twice_naive(got[i], naive[i], oracle[i], unit_of(dtype) * largest + 1e-30))
          << what << " " << dtype << (i ? " gradient " : " output ") << i;
    }
  }
}

inline void expect_gradients(const Op& op, std::vector<at::Tensor> inputs, double tolerance) {
  for (auto& x : inputs) x = x.to(at::kDouble).detach().requires_grad_();
  const auto y = op(inputs);
  const auto weights = at::cos(at::arange(y.numel(), at::kDouble)).view(y.sizes());
  (y * weights).sum().backward();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto slope = finite_difference(
        [&](const at::Tensor& x) {
          auto changed = inputs;
          changed[i] = x;
          return op(changed);
        },
        inputs[i], weights);
    EXPECT_TRUE(close(inputs[i].grad(), slope, tolerance)) << "input " << i;
  }
}

}  // namespace flashstep::testing
