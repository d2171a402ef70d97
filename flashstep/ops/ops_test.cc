#include "flashstep/ops.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "flashstep/error.h"
#include "flashstep/ops/cost.h"
#include "flashstep/ops/internal.h"
#include "flashstep/ops/passes.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using at::Tensor;
using Op = std::function<Tensor(const std::vector<Tensor>&)>;

// Output and gradients of op at `inputs` rounded to `dtype` and then computed in `compute`; the
// gradient that comes in is a fixed function of the output's shape.
std::vector<Tensor> run(const Op& op, const std::vector<Tensor>& inputs, at::ScalarType dtype,
                        at::ScalarType compute) {
  std::vector<Tensor> x;
  for (const auto& t : inputs) {
    x.push_back(
        t.to(dtype).to(compute).detach().clone(at::MemoryFormat::Preserve).requires_grad_());
  }
  const auto y = op(x);
  const auto dy = at::sin(at::arange(y.numel(), at::kDouble)).view(y.sizes()).to(dtype);
  y.backward(dy.to(y.scalar_type()));
  std::vector<Tensor> results = {y.detach()};
  for (const auto& t : x) results.push_back(t.grad());
  return results;
}

// The fused op in float32 and bfloat16 against the reference in float64, and against the reference
// in the same dtype by the twice-naive rule.
void expect_agreement(const Op& fused, const Op& reference, const std::vector<Tensor>& inputs,
                      const std::string& what) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto got = run(fused, inputs, dtype, dtype), naive = run(reference, inputs, dtype, dtype),
               oracle = run(reference, inputs, dtype, at::kDouble);
    for (size_t i = 0; i < got.size(); ++i) {
      if (oracle[i].numel() == 0) continue;
      EXPECT_EQ(got[i].scalar_type(), naive[i].scalar_type()) << what;
      // Epsilon: one rounding of the largest value.
      const double largest = oracle[i].abs().max().item<double>();
      const double unit = dtype == at::kFloat ? 6e-7 : 8e-3;
      EXPECT_TRUE(testing::within_twice_naive(got[i], naive[i], oracle[i], unit * largest + 1e-30))
          << what << " " << dtype << (i ? " gradient " : " output ") << i;
    }
  }
}

void expect_gradients(const Op& op, std::vector<Tensor> inputs, double tolerance) {
  for (auto& x : inputs) x = x.to(at::kDouble).detach().requires_grad_();
  const auto y = op(inputs);
  const auto weights = at::cos(at::arange(y.numel(), at::kDouble)).view(y.sizes());
  (y * weights).sum().backward();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto slope = testing::finite_difference(
        [&](const Tensor& x) {
          auto changed = inputs;
          changed[i] = x;
          return op(changed);
        },
        inputs[i], weights);
    EXPECT_TRUE(testing::close(inputs[i].grad(), slope, tolerance)) << "input " << i;
  }
}

// Widths around the vectors of 4, 8 and 16 lanes, primes, and more rows than one partial sum.
const std::vector<std::vector<int64_t>> kShapes = {{1, 1},   {3, 7},      {5, 8},  {2, 9},
                                                   {4, 15},  {4, 16},     {4, 17}, {130, 31},
                                                   {65, 64}, {2, 3, 129}, {0, 16}, {1, 1000}};

const Op kRmsNorm = [](const auto& x) { return rms_norm(x[0], x[1], 1e-5); };
const Op kRmsNormReference = [](const auto& x) { return rms_norm_reference(x[0], x[1], 1e-5); };
const Op kSwiglu = [](const auto& x) { return swiglu(x[0], x[1]); };
const Op kSwigluReference = [](const auto& x) { return swiglu_reference(x[0], x[1]); };

TEST(RmsNorm, AgreesWithTheReference) {
  torch::manual_seed(1);
  for (const auto& shape : kShapes) {
    expect_agreement(kRmsNorm, kRmsNormReference,
                     {torch::randn(shape) * 3, torch::rand({shape.back()}) + 0.5},
                     testing::shape_text(shape));
  }
}

TEST(RmsNorm, HasTheRightGradient) {
  torch::manual_seed(2);
  expect_gradients(kRmsNorm, {torch::randn({3, 5}), torch::randn({5})}, 1e-8);
}

TEST(RmsNorm, TakesAnyStrides) {
  torch::manual_seed(3);
  const auto x = torch::randn({33, 20}).t();
  const auto weight = torch::randn({66}).slice(0, 0, 66, 2);
  expect_agreement(kRmsNorm, kRmsNormReference, {x, weight}, "transposed");
}

TEST(RmsNorm, GivesTheAutocastDtype) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const auto x = torch::randn({4, 32}), weight = torch::ones({32});
  const auto fused = rms_norm(x, weight, 1e-5), reference = rms_norm_reference(x, weight, 1e-5);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(fused.scalar_type(), at::kBFloat16);
  EXPECT_EQ(reference.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(testing::close(fused, reference, 0, 8e-3));
}

TEST(Swiglu, AgreesWithTheReference) {
  torch::manual_seed(4);
  for (const auto& shape : kShapes) {
    expect_agreement(kSwiglu, kSwigluReference, {torch::randn(shape) * 4, torch::randn(shape)},
                     testing::shape_text(shape));
  }
  const auto far = torch::tensor({-1000.f, -104.f, -89.f, -87.f, 0.f, 87.f, 89.f, 104.f, 1000.f});
  expect_agreement(kSwiglu, kSwigluReference, {far, torch::ones({9})}, "far out");
  // However far: the sigmoid is 0 there, and its product with float32's largest numbers, too.
  const std::vector<Tensor> farther = {torch::full({17}, -3e38f), torch::ones({17})};
  for (const auto& result : run(kSwiglu, farther, at::kFloat, at::kFloat))
    EXPECT_TRUE(testing::close(result, torch::zeros({17}), 0));
}

TEST(Swiglu, HasTheRightGradient) {
  torch::manual_seed(5);
  expect_gradients(kSwiglu, {torch::randn({3, 5}), torch::randn({3, 5})}, 1e-8);
}

TEST(Swiglu, TakesAnyStrides) {
  expect_agreement(kSwiglu, kSwigluReference, {torch::randn({9, 20}).t(), torch::randn({20, 9})},
                   "transposed");
}

TEST(Rope, AgreesWithTheReference) {
  torch::manual_seed(6);
  for (const int64_t d : {2, 6, 8, 16, 18, 32, 34, 64, 126}) {
    for (const int64_t n : {1, 5, 33}) {
      const auto tables = rotary_tables(n + 3, d, 10000.0).slice(3, n);
      const auto x = torch::randn({2, n, 3, d}).transpose(1, 2);  // as a projection leaves it
      expect_agreement([&](const auto& in) { return rope(in[0], tables); },
                       [&](const auto& in) { return rope_reference(in[0], tables); }, {x},
                       str("d ", d, " n ", n));
      EXPECT_EQ(rope(x, tables).strides(), x.strides());
    }
  }
}

TEST(Rope, TakesRowsThatAreNotDense) {
  const auto tables = rotary_tables(4, 8, 10000.0);
  const auto wide = torch::randn({2, 3, 4, 17});
  const auto overlapping = wide.as_strided({2, 1, 4, 8}, {40, 40, 1, 1});
  for (const auto& x : {wide.narrow(3, 1, 8), wide.slice(3, 0, 16, 2), overlapping}) {
    EXPECT_TRUE(testing::close(rope(x, tables), rope_reference(x, tables), 1e-6));
  }
}

TEST(Rope, RotatesInterleavedPairsByThePosition) {
  const auto tables = rotary_tables(3, 4, 10000.0);
  const auto x = torch::tensor({1.f, 0.f, 0.f, 1.f}).expand({1, 1, 3, 4});
  const auto y = rope(x, tables).flatten(0, 2);
  for (int64_t t = 0; t < 3; ++t) {
    const double fast = static_cast<double>(t), slow = static_cast<double>(t) / 100;
    EXPECT_TRUE(testing::close(
        y[t], torch::tensor({std::cos(fast), std::sin(fast), -std::sin(slow), std::cos(slow)}),
        1e-6));
  }
}

TEST(Rope, HasTheRightGradient) {
  const auto tables = rotary_tables(3, 6, 10000.0);
  expect_gradients([&](const auto& in) { return rope(in[0], tables); },
                   {torch::randn({1, 2, 3, 6})}, 1e-8);
}

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

TEST(LinearCrossEntropy, LeavesWholeChunksOut) {
  torch::manual_seed(18);
  const int64_t classes = 4000, chunk = linear_cross_entropy_rows(9000, classes, 4);
  ASSERT_LT(chunk, 9000);
  const Tensor x = torch::randn({9000, 4}), weight = torch::randn({classes, 4});
  const Tensor targets = torch::randint(classes, {9000});
  targets.narrow(0, 0, chunk).fill_(kIgnoredTarget);
  targets[8999] = kIgnoredTarget;
  const auto [loss, dx, dweight] =
      internal::linear_cross_entropy_forward(x, weight, targets, at::kFloat, true, true);
  const Op op = [&, loss = loss, dx = dx, dweight = dweight](const auto& in) {
    // The gradients of a factor of 1, by a sum that has them.
    return loss + (in[0] * dx).sum() - (in[0].detach() * dx).sum() + (in[1] * dweight).sum() -
           (in[1].detach() * dweight).sum();
  };
  expect_pytorchs_loss(op, x, weight, targets, 1e-5);
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
}

TEST(Embedding, IsLibTorchsOnTheCpu) {
  const auto ids = torch::tensor({{3, 0, 3}, {1, 3, 2}}, at::kLong);
  expect_gradients([&](const auto& in) { return flashstep::embedding(in[0], ids); },
                   {torch::randn({4, 3})}, 1e-8);
  EXPECT_THROW(flashstep::embedding(torch::ones({3}), ids), UserError);
  EXPECT_THROW(flashstep::embedding(torch::ones({3, 2}), ids.to(at::kInt)), UserError);
  for (const int64_t id : {-1, 3}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      EXPECT_THROW(
          flashstep::embedding(torch::ones({3, 2}, dtype), torch::full({2}, id, at::kLong)),
          UserError)
          << id;
  }
}

// A frequent token: its gradient is the sum of many.
TEST(Embedding, SumsRowsOfEqualIdsInFloat32) {
  const auto ids = torch::zeros({1000}, at::kLong);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto weight = torch::zeros({3, 2}, dtype).requires_grad_();
    flashstep::embedding(weight, ids).sum().backward();
    EXPECT_EQ(weight.grad().scalar_type(), dtype);
    EXPECT_TRUE(testing::close(weight.grad()[0], torch::full({2}, 1000.0), 0)) << dtype;
    EXPECT_TRUE(testing::close(weight.grad().narrow(0, 1, 2), torch::zeros({2, 2}), 0)) << dtype;
  }
}

TEST(CrossEntropy, NamesWhatIsWrong) {
  const auto logits = torch::zeros({2, 3, 5});
  EXPECT_THROW(cross_entropy(logits, torch::zeros({2, 4}, at::kLong)), UserError);
  EXPECT_THROW(cross_entropy(logits, torch::zeros({2, 3})), UserError);
  EXPECT_THROW(cross_entropy(logits, torch::full({2, 3}, 5, at::kLong)), UserError);
  EXPECT_THROW(cross_entropy(logits, torch::full({2, 3}, -1, at::kLong)), UserError);
  EXPECT_THROW(rms_norm(logits, torch::ones({4}), 1e-5), UserError);
  EXPECT_THROW(swiglu(logits, logits[0]), UserError);
  EXPECT_THROW(rope(logits.unsqueeze(0), rotary_tables(3, 4, 10000.0)), UserError);
  EXPECT_THROW(rotary_tables(3, 5, 10000.0), UserError);
}

// The penalty's gradient needs second derivatives of op at x.
Tensor gradient_of_penalty(const Op& op, const Tensor& at_x) {
  const auto x = at_x.detach().requires_grad_();
  const auto y = op({x});
  const auto slope = torch::autograd::grad({y.pow(3).sum()}, {x}, {}, true, /*create_graph=*/true);
  (y.sum() + slope[0].square().sum()).backward();
  return x.grad();
}

TEST(Ops, RefuseSecondDerivativesThatTheyDoNotHave) {
  const auto x = torch::randn({4, 6}), weight = torch::randn({6}), other = torch::randn({4, 6});
  const auto targets = torch::tensor({0, 1, 2, 3}, at::kLong);
  for (const auto& [name, op] : std::vector<std::pair<std::string, Op>>{
           {"rms_norm", [&](const auto& in) { return rms_norm(in[0], weight, 1e-5); }},
           {"swiglu", [&](const auto& in) { return swiglu(in[0], other); }},
           {"cross_entropy", [&](const auto& in) { return cross_entropy(in[0], targets); }},
           {"cross_entropy",
            [&](const auto& in) { return linear_cross_entropy(in[0], other, targets); }},
           {"linear", [&](const auto& in) {
              return internal::widened_linear(in[0], other, at::kBFloat16).to(at::kFloat);
            }}}) {
    try {
      gradient_of_penalty(op, x);
      ADD_FAILURE() << name << " refuses nothing";
    } catch (const UserError& error) {
      EXPECT_EQ(error.what(), str("[", name,
                                  "] expected a backward without create_graph: it has no second "
                                  "derivatives"));
    }
  }
}

TEST(Rope, HasSecondDerivatives) {
  const auto tables = rotary_tables(4, 6, 10000.0);
  const auto x = torch::randn({1, 2, 4, 6});
  EXPECT_TRUE(testing::close(
      gradient_of_penalty([&](const auto& in) { return rope(in[0], tables); }, x),
      gradient_of_penalty([&](const auto& in) { return rope_reference(in[0], tables); }, x), 1e-4));
}

TEST(Ops, AreTheSameBitsForAnyNumberOfThreads) {
  torch::manual_seed(8);
  const std::vector<Tensor> x = {torch::randn({300, 65}), torch::randn({65})};
  const auto targets = torch::randint(65, {300});
  const Op loss = [&](const auto& in) { return cross_entropy(in[0] * in[1], targets); };
  const int threads = at::get_num_threads();
  for (const auto& op : {kRmsNorm, loss}) {
    at::set_num_threads(1);
    const auto one = run(op, x, at::kFloat, at::kFloat);
    at::set_num_threads(std::max(2, threads));
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto more = run(op, x, at::kFloat, at::kFloat);
      for (size_t i = 0; i + 1 < one.size(); ++i) EXPECT_TRUE(testing::same_bits(more[i], one[i]));
    }
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace flashstep
