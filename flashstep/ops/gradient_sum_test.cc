// Gradients that a backward adds up itself, beside those that autograd adds up.
#include "flashstep/ops/gradient_sum.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

namespace flashstep {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int additions = 0;  // that backward made itself

// The sum of weight * x.
class Dot : public torch::autograd::Function<Dot> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& weight, const Tensor& x) {
    context->save_for_backward({x});
    internal::keep_weight(context, weight);
    return (weight * x).sum();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Tensor made = gradients[0] * context->get_saved_variables()[0];
    const Tensor weight = internal::weight_to_add_to(context);
    if (!weight.defined()) return {made, Tensor()};
    ++additions;
    weight.mutable_grad().add_(made);
    return {internal::take_gradient(weight), Tensor()};
  }
};

class GradientSum : public ::testing::Test {
 protected:
  void SetUp() override { additions = 0; }
  void backward() { Dot::apply(weight, x).backward(); }
  // After so many backwards, of which backward itself added up some.
  void expect(double times, int added) {
    EXPECT_TRUE(torch::equal(weight.grad().to(at::kFloat), x * times)) << weight.grad();
    EXPECT_EQ(additions, added);
  }

  Tensor weight = torch::ones({2, 3}).requires_grad_(), x = torch::arange(6.0f).view({2, 3});
};

TEST_F(GradientSum, StaysWhereTheFirstOneLies) {
  backward();
  expect(1, 0);
  const void* const place = weight.grad().const_data_ptr();
  for (int times = 2; times < 5; ++times) {
    backward();
    expect(times, times - 1);
    EXPECT_EQ(weight.grad().const_data_ptr(), place);
  }
}

TEST_F(GradientSum, OfAGraphThatIsGoneThroughTwice) {
  const Tensor loss = Dot::apply(weight, x);
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  expect(2, 1);
}

// The first use takes the sum, the second one finds none.
TEST_F(GradientSum, OfTwoUsesOfAWeight) {
  backward();
  (Dot::apply(weight, x) + Dot::apply(weight, 2 * x)).backward();
  expect(4, 1);
}

TEST_F(GradientSum, WhoHoldsTheGradientGoesOnSeeingIt) {
  backward();
  const Tensor held = weight.grad();
  backward();
  expect(2, 0);
  EXPECT_TRUE(held.is_same(weight.grad()));
}

// A gradient that is a part of somebody's larger tensor is added to where it lies.
TEST_F(GradientSum, APartOfALargerTensorStaysOne) {
  const Tensor flat = torch::zeros({10});
  weight.mutable_grad() = flat.narrow(0, 2, 6).view({2, 3});
  backward();
  backward();
  expect(2, 2);
  EXPECT_TRUE(torch::equal(flat.narrow(0, 2, 6).view({2, 3}), x * 2));
}

TEST_F(GradientSum, AHookSeesTheNewPartAlone) {
  backward();
  Tensor seen;
  weight.register_hook([&](const Tensor& gradient) { seen = gradient.clone(); });
  backward();
  EXPECT_TRUE(torch::equal(seen, x));
  expect(2, 0);
}

struct Seen : torch::autograd::FunctionPreHook {
  explicit Seen(Tensor& seen) : seen(seen) {}
  variable_list operator()(const variable_list& gradients) override {
    seen = gradients[0].clone();
    return gradients;
  }
  Tensor& seen;
};

TEST_F(GradientSum, SoDoesAHookBeforeTheAddition) {
  backward();
  Tensor seen;
  const auto node = torch::autograd::impl::grad_accumulator(weight);
  node->add_pre_hook(std::make_unique<Seen>(seen));
  backward();
  EXPECT_TRUE(torch::equal(seen, x));
  expect(2, 0);
}

struct SeenBehind : torch::autograd::FunctionPostHook {
  explicit SeenBehind(Tensor& seen) : seen(seen) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    seen = inputs[0].clone();
    return outputs;
  }
  Tensor& seen;
};

TEST_F(GradientSum, AndOneBehindIt) {
  backward();
  Tensor seen;
  const auto node = torch::autograd::impl::grad_accumulator(weight);
  node->add_post_hook(std::make_unique<SeenBehind>(seen));
  backward();
  EXPECT_TRUE(torch::equal(seen, x));
  expect(2, 0);
}

TEST_F(GradientSum, NothingIsAddedToWhatIsNotAskedFor) {
  backward();
  const auto got = torch::autograd::grad({Dot::apply(weight, x)}, {weight});
  EXPECT_TRUE(torch::equal(got[0], x));
  expect(1, 0);
  Dot::apply(weight, x).backward({}, /*retain_graph=*/false, /*create_graph=*/false,
                                 at::TensorList(weight));
  expect(2, 0);
}

TEST_F(GradientSum, OtherDtypesAndLayoutsAreAutograds) {
  weight.set_grad_dtype(at::kBFloat16);
  backward();
  backward();
  expect(2, 0);
  weight = torch::ones({2, 3}).requires_grad_();
  weight.mutable_grad() = torch::zeros({3, 2}).t();
  backward();
  expect(1, 0);
  const Tensor leaf = torch::ones({2, 3}).requires_grad_();
  for (int times = 0; times < 2; ++times) Dot::apply(leaf * 1, x).backward();
  EXPECT_TRUE(torch::equal(leaf.grad(), x * 2));
  EXPECT_EQ(additions, 0);
}

}  // namespace
}  // namespace flashstep
