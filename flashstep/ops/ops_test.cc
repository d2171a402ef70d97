#include "flashstep/ops.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "flashstep/error.h"
#include "flashstep/ops/internal.h"
#include "flashstep/ops/passes.h"
#include "flashstep/ops/test_op.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {
using at::Tensor;
using testing::expect_agreement;
using testing::expect_gradients;
using testing::Op;
using testing::run;

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

TEST(Swiglu, PromotesTwoDtypesAsPyTorchDoes) {
  torch::manual_seed(12);
  const auto a = torch::randn({3, 9}, at::kBFloat16).requires_grad_(), b = torch::randn({3, 9});
  const auto y = swiglu(a, b), expected = at::silu(a.detach().to(at::kFloat)) * b;
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_TRUE(testing::close(y, expected, 1e-6));
  y.sum().backward();
  EXPECT_EQ(a.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(swiglu(b, a).scalar_type(), at::kFloat);
  EXPECT_TRUE(testing::same_bits(swiglu_reference(a, b).detach(), expected));
  EXPECT_EQ(swiglu_reference(a, b.to(at::kDouble)).scalar_type(), at::kDouble);
  EXPECT_THROW(swiglu(b, b.to(at::kLong)), UserError);
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

TEST(Rope, NamesTheDevicesOfItsTables) {
  const auto tables = rotary_tables(3, 4, 10000.0);
  const auto x = torch::ones({1, 1, 3, 4});
  for (const RotaryTables& apart : {RotaryTables{tables.cos.to(at::kMeta), tables.sin},
                                    RotaryTables{tables.cos, tables.sin.to(at::kMeta)}}) {
    try {
      rope(x, apart);
      ADD_FAILURE() << "nothing was refused";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("device"), std::string::npos) << error.what();
    }
  }
}

TEST(Rope, HasTheRightGradient) {
  const auto tables = rotary_tables(3, 6, 10000.0);
  expect_gradients([&](const auto& in) { return rope(in[0], tables); },
                   {torch::randn({1, 2, 3, 6})}, 1e-8);
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
  const auto tables = rotary_tables(3, 4, 10000.0);
  testing::expect_sentence(
      [&] {
        rope(torch::ones({1, 1, 3, 4}), {tables.cos, tables.sin.to(at::kDouble)});
      },
      {"float32 tables of shape (3, 2), got [3, 2] of Float and [3, 2] of Double"});
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
           {"linear_cross_entropy",
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
