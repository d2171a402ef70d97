#include <cmath>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using at::Tensor;

TEST(GradNorm, IsTheRootOfAllSquares) {
  at::manual_seed(2);
  std::vector<Tensor> tensors;
  double sum = 0;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const int64_t size : {0, 1, 7, 8191}) {
      tensors.push_back(at::randn({size}).to(dtype));
      sum += tensors.back().to(at::kDouble).square().sum().item<double>();
    }
  }
  tensors.push_back(at::randn({6, 10}).t().slice(0, 1, 9, 3));
  sum += tensors.back().to(at::kDouble).square().sum().item<double>();
  const Tensor norm = grad_norm(tensors);
  EXPECT_EQ(norm.scalar_type(), at::kFloat);
  EXPECT_EQ(norm.dim(), 0);
  EXPECT_NEAR(norm.item<double>(), std::sqrt(sum), 1e-6 * std::sqrt(sum));
  EXPECT_TRUE(testing::same_bits(norm, grad_norm_reference(tensors)));
}

TEST(GradNorm, OfFloat64BeyondFloat32sSquares) {
  for (const double size : {1e20, 1e-25}) {
    const std::vector<at::Tensor> tensors = {at::full({3}, size, at::kDouble),
                                             at::full({1}, size, at::kDouble), at::zeros({2})};
    const at::Tensor norm = grad_norm(tensors);
    EXPECT_EQ(norm.scalar_type(), at::kFloat);
    EXPECT_NEAR(norm.item<double>() / size, 2, 1e-6);
  }
}

TEST(GradNorm, OfNothingAndOfNumbersThatAreNone) {
  EXPECT_EQ(grad_norm({}).item<double>(), 0);
  EXPECT_EQ(grad_norm({at::zeros({0})}).item<double>(), 0);
  EXPECT_TRUE(std::isnan(grad_norm({at::ones({3}), at::full({1}, NAN)}).item<double>()));
  EXPECT_EQ(grad_norm({at::full({1}, INFINITY)}).item<double>(), INFINITY);
}

TEST(ClipFactor, IsTorchsRule) {
  EXPECT_EQ(clip_factor(at::full({}, 4.0), 8).item<float>(), 1);
  EXPECT_NEAR(clip_factor(at::full({}, 4.0), 1).item<double>(), 0.25, 1e-6);
  EXPECT_EQ(clip_factor(at::zeros({}), 1).item<float>(), 1);
  EXPECT_TRUE(std::isnan(clip_factor(at::full({}, NAN), 1).item<double>()));
  EXPECT_THROW(clip_factor(at::ones({}), 0), UserError);
}

// The factor is not rounded to the gradients' 16 bits.
TEST(ClipToNorm, ScalesShortGradientsByAFloat32Factor) {
  at::manual_seed(4);
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const std::vector<Tensor> gradients = {at::randn({300}).to(dtype), at::randn({}).to(dtype),
                                           at::randn({7, 9}).to(dtype).t()};
    const Tensor norm = grad_norm(gradients);
    const double max_norm = 0.7003 * norm.item<double>();
    const Tensor factor = clip_factor(norm, max_norm);
    std::vector<Tensor> expected;
    for (const Tensor& gradient : gradients)
      expected.push_back((gradient.to(at::kFloat) * factor).to(dtype));
    clip_to_norm(gradients, norm, max_norm);
    for (size_t i = 0; i < gradients.size(); ++i)
      EXPECT_TRUE(testing::same_bits(gradients[i], expected[i])) << dtype << " " << i;
  }
}

}  // namespace
}  // namespace flashstep
