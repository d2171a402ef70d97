#include <cmath>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/cost.h"
#include "flashstep/ops/internal.h"
#include "flashstep/ops/passes.h"
#include "flashstep/ops/test_op.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::expect_agreement;
using testing::expect_gradients;
using testing::Op;

TEST(CrossEntropy, AgreesWithTheReference) {
  torch::manual_seed(7);
  for (const int64_t classes : {1, 2, 15, 16, 17, 257, 1000}) {
    for (const int64_t rows : {1, 3, 70}) {
      const auto targets = torch::randint(classes, {rows});
      // Also far from 0, where the maximum and the sum's logarithm, added up, would lose digits.
      for (const int64_t from : {0, 10000}) {
        expect_agreement([&](const auto& x) { return cross_entropy(x[0], targets); },
                         [&](const auto& x) { return cross_entropy_reference(x[0], targets); },
                         {torch::randn({rows, classes}) * 5 + from},
                         str(rows, " rows of ", classes, " from ", from));
      }
    }
  }
}

TEST(CrossEntropy, HasTheRightGradient) {
  const auto targets = torch::tensor({0, 4, 2}, at::kLong);
  expect_gradients([&](const auto& x) { return cross_entropy(x[0], targets); },
                   {torch::randn({3, 5})}, 1e-8);
}

TEST(CrossEntropy, SurvivesLargeLogitsAndTellsOfBadOnes) {
  const auto targets = torch::tensor({1}, at::kLong);
  const auto loss = [&](float a, float b) {
    auto x = torch::zeros({1, 37});
    x[0][0] = a;
    x[0][1] = b;
    return cross_entropy(x, targets).item<float>();
  };
  EXPECT_NEAR(loss(1e4f, 1e4f), std::log(2.0), 1e-3);
  EXPECT_FLOAT_EQ(loss(3e38f, 0), 3e38f);
  EXPECT_NEAR(loss(-INFINITY, 0), std::log(36.0), 1e-5);
  EXPECT_TRUE(std::isnan(loss(NAN, 0)));
  EXPECT_TRUE(std::isnan(loss(0, NAN)));
  EXPECT_FALSE(std::isfinite(loss(INFINITY, 0)));
}

// PyTorch's loss and gradient, where each position in `ignored` is left out.
void expect_pytorchs_loss(const Op& op, const Tensor& x_any, const Tensor& weight_any,
                          const Tensor& targets, double tolerance) {
  Tensor results[2][3];
  for (const bool ours : {false, true}) {
    const Tensor x = x_any.clone().requires_grad_(), weight = weight_any.clone().requires_grad_();
    const Tensor loss =
        ours ? op({x, weight})
             : at::cross_entropy_loss(at::linear(x, weight).flatten(0, -2), targets.flatten());
    loss.backward();
    results[ours][0] = loss.detach();
    results[ours][1] = x.grad();
    results[ours][2] = weight.grad();
  }
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(
        testing::close(results[1][i], results[0][i].to(results[1][i].scalar_type()), tolerance))
        << i << results[1][i].scalar_type() << targets;
}

TEST(CrossEntropy, LeavesIgnoredTargetsOut) {
  torch::manual_seed(17);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const Tensor x = torch::randn({2, 5, 8}, dtype), weight = torch::randn({33, 8}, dtype);
    for (const std::vector<int64_t>& ignored :
         {std::vector<int64_t>{}, {0}, {3, 9}, {0, 1, 2, 3, 4, 5, 6, 7, 8}}) {
      Tensor targets = torch::randint(33, {10});
      for (const int64_t i : ignored) targets[i] = kIgnoredTarget;
      targets = targets.view({2, 5});
      const Op apart = [&](const auto& in) {
        return cross_entropy(at::linear(in[0], in[1]), targets);
      };
      const Op reference = [&](const auto& in) {
        return cross_entropy_reference(at::linear(in[0], in[1]), targets);
      };
      const Op fused = [&](const auto& in) { return linear_cross_entropy(in[0], in[1], targets); };
      for (const Op& op : {apart, reference, fused})
        expect_pytorchs_loss(op, x, weight, targets, 1e-6);
      EXPECT_THROW(cross_entropy(at::linear(x, weight), targets.clone().fill_(-101)), UserError);
      targets[1][1] = 33;
      EXPECT_THROW(fused({x, weight}), UserError);
    }
    const auto logits = torch::randn({3, 5}, dtype).requires_grad_();
    const auto loss = cross_entropy(logits, torch::full({3}, kIgnoredTarget, at::kLong));
    EXPECT_TRUE(std::isnan(loss.item<double>()));
    loss.backward();
    EXPECT_TRUE(torch::equal(logits.grad(), torch::zeros_like(logits)));
  }
}

TEST(LinearCrossEntropy, AddsChunksUpAndLeavesWholeOnesOut) {
  torch::manual_seed(18);
  const int64_t rows = 1300, classes = 9001;
  const int64_t chunk = linear_cross_entropy_rows_on_cpu(rows, classes);
  ASSERT_LT(chunk, rows);
  const Tensor x = torch::randn({rows, 4}), weight = torch::randn({classes, 4});
  const Tensor targets = torch::randint(classes, {rows});
  const Op op = [&](const auto& in) { return linear_cross_entropy(in[0], in[1], targets); };
  expect_pytorchs_loss(op, x, weight, targets, 1e-5);
  targets.narrow(0, 0, chunk).fill_(kIgnoredTarget);
  targets[rows - 1] = kIgnoredTarget;
  expect_pytorchs_loss(op, x, weight, targets, 1e-5);
}

TEST(LinearCrossEntropy, KeepsItsGradientsForASecondBackward) {
  const auto x = torch::randn({6, 4}).requires_grad_(), weight = torch::randn({9, 4});
  weight.requires_grad_();
  const auto loss = linear_cross_entropy(x, weight, torch::randint(9, {6}));
  loss.backward({}, /*retain_graph=*/true);
  const Tensor dx = x.grad().clone(), dweight = weight.grad().clone();
  (loss * 0.5).backward({}, /*retain_graph=*/true);
  loss.backward();
  EXPECT_TRUE(testing::close(x.grad(), dx * 2.5, 1e-7));
  EXPECT_TRUE(testing::close(weight.grad(), dweight * 2.5, 1e-7));
}

TEST(CrossEntropy, OfFloat16IsComputedInFloat32) {
  const Tensor logits = torch::full({2, 3, 64}, 80.0, at::kHalf);
  const Tensor loss = cross_entropy(logits, torch::zeros({2, 3}, at::kLong));
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_NEAR(loss.item<double>(), std::log(64.0), 1e-6);
}

TEST(CrossEntropy, ScalesItsGradientAndKeepsTheSavedOne) {
  const auto targets = torch::randint(9, {4});
  const auto x = torch::randn({4, 9}).requires_grad_();
  cross_entropy(x, targets).backward();
  const auto once = x.grad().clone();
  (cross_entropy(x, targets) * 0.25).backward();
  EXPECT_TRUE(testing::close(x.grad(), once * 1.25, 1e-8));
}

TEST(LinearCrossEntropy, IsBothOperationsOneAfterTheOther) {
  torch::manual_seed(9);
  const auto targets = torch::randint(33, {2, 5});
  const Op fused = [&](const auto& in) { return linear_cross_entropy(in[0], in[1], targets); };
  const std::vector<Tensor> inputs = {torch::randn({2, 5, 8}), torch::randn({33, 8})};
  expect_agreement(
      fused,
      [&](const auto& in) { return cross_entropy_reference(at::linear(in[0], in[1]), targets); },
      inputs, "2 x 5 of 33");
  expect_gradients(fused, inputs, 1e-8);
  EXPECT_THROW(linear_cross_entropy(inputs[0], inputs[1], targets[0]), UserError);
  EXPECT_THROW(linear_cross_entropy(inputs[0], inputs[1].t(), targets), UserError);
  EXPECT_THROW(linear_cross_entropy(inputs[0], inputs[1], targets + 33), UserError);
}

TEST(LinearCrossEntropy, CutsRowsIntoEvenChunks) {
  EXPECT_EQ(linear_cross_entropy_rows(2048, 10000, 2), 2048);   // 41 MB
  EXPECT_EQ(linear_cross_entropy_rows(65536, 1000, 2), 32768);  // two of 66 MB
  EXPECT_EQ(linear_cross_entropy_rows(65536, 10000, 2), 4096);  // at least so many
  EXPECT_EQ(linear_cross_entropy_rows(32768, 151936, 2), 4096);
  EXPECT_EQ(linear_cross_entropy_rows(4200, 50257, 2), 2176);  // two
  EXPECT_EQ(linear_cross_entropy_rows(5, 10, 4), 5);
  EXPECT_EQ(linear_cross_entropy_rows_on_cpu(65536, 2048), 2048);  // 16 MiB
  EXPECT_EQ(linear_cross_entropy_rows_on_cpu(65536, 50257), 512);  // at least so many
  EXPECT_EQ(linear_cross_entropy_rows_on_cpu(5, 10), 5);
}

}  // namespace
}  // namespace flashstep
