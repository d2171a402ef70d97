// Comparison of tensors in which a NaN fails, and whose report names the worst coordinate.
//   EXPECT_TRUE(testing::close(actual, expected, 1e-6));
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/base/text.h"

namespace flashstep::testing {

// "(2, 8, 100, 32)"
inline std::string shape_text(at::IntArrayRef sizes) {
  std::vector<std::string> parts;
  for (const int64_t size : sizes) parts.push_back(std::to_string(size));
  return str("(", join(parts), ")");
}

// Succeeds if |actual - expected| <= tolerance everywhere; `tolerance` broadcasts over both. Equal
// infinities agree; a NaN in any of the three fails.
inline ::testing::AssertionResult close_within(const at::Tensor& actual, const at::Tensor& expected,
                                               const at::Tensor& tolerance) {
  if (actual.sizes() != expected.sizes()) {
    return ::testing::AssertionFailure() << "shape " << shape_text(actual.sizes()) << ", expected "
                                         << shape_text(expected.sizes());
  }
  if (actual.numel() == 0) return ::testing::AssertionSuccess();
  const auto a = actual.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto e = expected.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto allowed = tolerance.detach().to(at::kCPU, at::kDouble).expand_as(e);
  const auto error = at::where(a == e, at::zeros_like(a), (a - e).abs());
  const auto excess = at::nan_to_num(error / allowed.clamp_min(1e-300), INFINITY, INFINITY);
  const auto wrong = (error <= allowed).logical_not();  // written so that NaN counts as wrong
  const int64_t count = wrong.sum().item<int64_t>();
  if (count == 0) return ::testing::AssertionSuccess();
  const int64_t worst =
      at::where(wrong, excess, at::full_like(excess, -1)).argmax().item<int64_t>();
  std::vector<std::string> coordinate;
  int64_t rest = worst;
  for (int64_t axis = a.dim() - 1; axis >= 0; --axis) {
    coordinate.insert(coordinate.begin(), std::to_string(rest % a.size(axis)));
    rest /= a.size(axis);
  }
  return ::testing::AssertionFailure()
         << count << " of " << a.numel() << " elements wrong; worst at (" << join(coordinate)
         << "): got " << a.flatten()[worst].item<double>() << ", expected "
         << e.flatten()[worst].item<double>() << ", allowed difference "
         << allowed.flatten()[worst].item<double>();
}

// |actual - expected| <= absolute + relative * |expected|.
inline ::testing::AssertionResult close(const at::Tensor& actual, const at::Tensor& expected,
                                        double absolute, double relative = 0) {
  return close_within(actual, expected,
                      expected.detach().to(at::kDouble).abs() * relative + absolute);
}

// The rule for kernels: no element is further from the float64 `oracle` than twice the worst error
// of the naive formula in the same dtype, plus `epsilon`.
inline ::testing::AssertionResult within_twice_naive(const at::Tensor& actual,
                                                     const at::Tensor& naive,
                                                     const at::Tensor& oracle, double epsilon) {
  const auto reference = oracle.detach().to(at::kDouble);
  const double worst = oracle.numel()
                           ? (naive.detach().to(at::kDouble) - reference).abs().max().item<double>()
                           : 0.0;
  return close_within(actual, oracle, at::scalar_tensor(2 * worst + epsilon, at::kDouble));
}

// Same shape, same dtype, same bits.
inline ::testing::AssertionResult same_bits(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.dtype() != expected.dtype()) {
    return ::testing::AssertionFailure()
           << "dtype " << actual.dtype() << ", expected " << expected.dtype();
  }
  if (actual.sizes() != expected.sizes()) return close(actual, expected, 0);
  if (actual.is_cuda() && actual.device() == expected.device()) {  // there, not fetched
    const auto bytes = [](const at::Tensor& t) {
      return t.detach().contiguous().flatten().view(at::kByte);
    };
    if (at::equal(bytes(actual), bytes(expected))) return ::testing::AssertionSuccess();
  }
  const auto a = actual.detach().cpu().contiguous(), e = expected.detach().cpu().contiguous();
  if (std::memcmp(a.data_ptr(), e.data_ptr(), a.nbytes()) == 0)
    return ::testing::AssertionSuccess();
  auto result = close(actual, expected, 0);
  return result ? ::testing::AssertionFailure() << "equal values with different bits" : result;
}

// d(sum of f(x) * weights)/dx by central differences in float64, one element at a time.
template <typename Function>
at::Tensor finite_difference(const Function& f, const at::Tensor& x, const at::Tensor& weights,
                             double step = 1e-5) {
  at::NoGradGuard no_grad;
  auto point = x.detach().to(at::kDouble).clone().contiguous();
  auto gradient = at::zeros_like(point);
  double* values = point.data_ptr<double>();
  double* slopes = gradient.data_ptr<double>();
  for (int64_t i = 0; i < point.numel(); ++i) {
    const double kept = values[i];
    values[i] = kept + step;
    const double above = (f(point) * weights).sum().template item<double>();
    values[i] = kept - step;
    const double below = (f(point) * weights).sum().template item<double>();
    values[i] = kept;
    slopes[i] = (above - below) / (2 * step);
  }
  return gradient;
}

}  // namespace flashstep::testing
