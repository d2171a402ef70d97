// The optimizer in backward of the training step: the same weights with fewer gradients, and the
// options that it cannot have.
#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include "flashstep/error.h"
#include "flashstep/loop.h"
#include "flashstep/ops.h"
#include "flashstep/optim.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::expect_sentence;
using testing::same_bits;
using torch::Tensor;

// A network with tied weights, trained by AdamW or SGD.
struct TiedProblem {
  testing::TiedToy net;
  Tensor x, y;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  explicit TiedProblem(bool sgd = false) {
    torch::manual_seed(5);
    for (Tensor parameter : net.parameters()) {
      const torch::NoGradGuard no_grad;
      parameter.copy_(torch::randn(parameter.sizes()) / 5);
    }
    x = torch::randn({8, 10});
    y = torch::randn({8, 5});
    if (sgd) {
      optimizer =
          std::make_unique<torch::optim::SGD>(net.parameters(), torch::optim::SGDOptions(1e-2));
    } else {
      optimizer = std::make_unique<AdamW>(net.parameters(), torch::optim::AdamWOptions(1e-2));
    }
  }
  TrainStep make(StepOptions options, double factor = 1) {
    return TrainStep(
        net.parameters(), *optimizer,
        [this, factor](int64_t step, int64_t) {
          const Tensor loss = torch::nn::functional::mse_loss(net.forward(x), y);
          return step == 1 ? loss * factor : loss;
        },
        options);
  }
  std::vector<Tensor> weights() const {
    std::vector<Tensor> result;
    for (const Tensor& parameter : net.parameters()) result.push_back(parameter.detach().clone());
    return result;
  }
};

void expect_same_weights(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << i;
}

TEST(UpdateInBackward, HasTheBitsOfAnUpdateAfterIt) {
  TiedProblem after, in;
  TrainStep after_step = after.make({}), in_step = in.make({.update_in_backward = true});
  for (int64_t step = 0; step < 5; ++step) {
    const StepResult expected = after_step.run(step), got = in_step.run(step);
    EXPECT_EQ(got.loss.item<float>(), expected.loss.item<float>());
    EXPECT_NEAR(got.grad_norm.item<float>(), expected.grad_norm.item<float>(), 1e-6);
    EXPECT_EQ(got.skipped.item<float>(), 0);
    for (const Tensor& parameter : in.net.parameters()) EXPECT_FALSE(parameter.grad().defined());
  }
  expect_same_weights(in.weights(), after.weights());
}

TEST(UpdateInBackward, SkipsWhatIsNotFinite) {
  for (const bool sgd : {false, true}) {
    TiedProblem problem(sgd);
    TrainStep step = problem.make({.update_in_backward = true}, NAN);
    EXPECT_EQ(step.run(0).skipped.item<float>(), 0);
    const auto before = problem.weights();
    const StepResult bad = step.run(1);
    EXPECT_EQ(bad.skipped.item<float>(), 1);
    EXPECT_TRUE(std::isnan(bad.loss.item<float>()));
    expect_same_weights(problem.weights(), before);
    EXPECT_EQ(step.run(2).skipped.item<float>(), 0);
    EXPECT_FALSE(same_bits(problem.weights()[0], before[0]));
  }
}

// By several updates in a backward, of which each takes its own gradients alone.
TEST(UpdateInBackward, TakesWhatIsUnfrozenLater) {
  std::vector<Tensor> results[2];
  for (const bool in_backward : {false, true}) {
    std::vector<Tensor> weights;  // each larger than what is updated at once
    for (const int64_t begin : {1, 2, 3})
      weights.push_back(at::full({4200, 4200}, 0.01 * begin).requires_grad_(begin != 2));
    AdamW optimizer(weights, torch::optim::AdamWOptions(1e-2));
    const Tensor x = at::ones({1, 4200});
    TrainStep step(weights, optimizer,
                   [&](int64_t, int64_t) {
                     Tensor y = x;
                     for (const Tensor& weight : weights) y = at::mm(y, weight) / 42;
                     return y.mean();
                   },
                   {.max_norm = 0, .update_in_backward = in_backward});
    step.run(0);
    weights[1].requires_grad_(true);
    for (int64_t number = 1; number < 3; ++number)
      EXPECT_GT(step.run(number).grad_norm.item<float>(), 0);
    for (const Tensor& weight : weights)
      results[in_backward].push_back(weight.detach().slice(0, 0, 3));
  }
  expect_same_weights(results[1], results[0]);
}

TEST(UpdateInBackward, RefusesWhatItCannotHave) {
  TiedProblem problem;
  expect_sentence([&] { problem.make({.max_norm = 1, .update_in_backward = true}); },
                  {"expected optimizer.clip_norm 0", "got 1"});
  expect_sentence([&] { problem.make({.accumulation_steps = 2, .update_in_backward = true}); },
                  {"expected train.accumulation_steps 1", "got 2"});
  expect_sentence(
      [&] { problem.make({.precision = Precision::kFloat16, .update_in_backward = true}); },
      {"expected a precision of fp32 or bf16", "got fp16"});
}

// One weight under two names, whose gradient alone is worth an update.
TEST(UpdateInBackward, TakesALargeTiedWeight) {
  struct Tied : torch::nn::Module {
    Tensor weight = register_parameter("in", torch::full({4096, 4200}, 0.01));
    Tied() { register_parameter("out", weight); }
  };
  Tied nets[2];
  for (const bool in_backward : {false, true}) {
    Tied& net = nets[in_backward];
    AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
    TrainStep step(
        net.parameters(), optimizer,
        [&](int64_t, int64_t) {
          return at::mm(at::linear(torch::ones({1, 4200}), net.weight), net.weight).mean();
        },
        {.max_norm = 0, .update_in_backward = in_backward});
    step.run(0);
  }
  EXPECT_TRUE(torch::equal(nets[0].weight, nets[1].weight));
  EXPECT_LT(nets[0].weight.max().item<float>(), 0.01);
}

// Each call has a backward of its own, and the second would see what the first has updated.
TEST(UpdateInBackward, RefusesAModuleThatIsComputedAgainTwice) {
  Tensor weight = torch::ones({3, 3}, torch::kFloat).set_requires_grad(true);
  AdamW optimizer({weight}, torch::optim::AdamWOptions(1e-2));
  for (const int calls : {1, 2}) {
    TrainStep step({weight}, optimizer,
                   [&](int64_t, int64_t) {
                     Tensor x = torch::ones({2, 3}).set_requires_grad(true);
                     for (int i = 0; i < calls; ++i)
                       x = recompute([&](const Tensor& in) { return at::linear(in, weight); }, x);
                     return x.mean();
                   },
                   {.max_norm = 0, .update_in_backward = true});
    if (calls == 1) {
      step.run(0);
    } else {
      expect_sentence([&] { step.run(0); }, {"optimizer in backward", "[3, 3]", "recompute"});
    }
  }
}

}  // namespace
}  // namespace flashstep
