// The step and what it is made of: clipping, schedule, autocast, loss scaling.
#include <cmath>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "flashstep/error.h"
#include "flashstep/loop.h"
#include "flashstep/optim.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using torch::Tensor;
namespace F = torch::nn::functional;

TEST(Clip, NormAndFactorAreTorchs) {
  torch::manual_seed(1);
  std::vector<Tensor> ours, theirs;
  for (const auto& shape : std::vector<std::vector<int64_t>>{{3, 4}, {1}, {50}}) {
    ours.push_back(torch::zeros(shape).requires_grad_());
    ours.back().mutable_grad() = torch::randn(shape);
    theirs.push_back(torch::zeros(shape).requires_grad_());
    theirs.back().mutable_grad() = ours.back().grad().clone();
  }
  ours.push_back(torch::zeros({2}));  // without gradient
  for (const double max_norm : {0.5, 100.0}) {
    const auto gradients = gradients_of(ours);
    ASSERT_EQ(gradients.size(), 3u);
    const Tensor norm = grad_norm(gradients);
    const double expected = torch::nn::utils::clip_grad_norm_(theirs, max_norm);
    EXPECT_NEAR(norm.item<double>(), expected, 1e-6 * expected);
    clip_to_norm(gradients, norm, max_norm);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(ours[i].grad().allclose(theirs[i].grad(), 1e-6, 0));
  }
}

TEST(Clip, ATiedParameterCountsOnce) {
  testing::TiedToy tied;
  const std::vector<Tensor> parameters = tied.parameters();  // the second is the fourth, too
  for (Tensor parameter : parameters) parameter.mutable_grad() = torch::ones_like(parameter);
  const auto gradients = gradients_of(parameters);
  ASSERT_EQ(gradients.size(), 4u);
  const Tensor norm = grad_norm(gradients);
  EXPECT_NEAR(norm.item<double>(), std::sqrt(50 * 10 + 10 * 50 + 50 * 10 + 5 * 10), 1e-4);
  clip_to_norm(gradients, norm, 1);
  const double clipped = 1 / (norm.item<double>() + 1e-6);
  for (const Tensor& parameter : parameters) {
    EXPECT_NEAR(parameter.grad().max().item<double>(), clipped, 1e-6 * clipped);
  }
}

TEST(Clip, MixedDtypesAndNothing) {
  EXPECT_EQ(grad_norm({}).item<float>(), 0);
  const std::vector<Tensor> mixed = {torch::full({2}, 300.0, torch::kHalf),
                                     torch::full({2}, 400.0)};
  const Tensor norm = grad_norm(mixed);  // 300^2 overflows float16
  EXPECT_NEAR(norm.item<double>(), std::sqrt(2 * 9e4 + 2 * 16e4), 1e-3);
  EXPECT_TRUE(std::isnan(grad_norm({torch::full({1}, NAN)}).item<double>()));
  EXPECT_THROW(clip_to_norm(mixed, norm, 0), UserError);
}

TEST(Schedule, IsTheCourses) {
  const Schedule schedule{1.0, 0.1, 7, 21};
  EXPECT_EQ(learning_rate_at(schedule, 0), 0);
  EXPECT_THROW(learning_rate_at(schedule, -1), UserError);
  EXPECT_NEAR(learning_rate_at(schedule, 3), 3.0 / 7, 1e-15);
  EXPECT_NEAR(learning_rate_at(schedule, 7), 1, 1e-15);
  EXPECT_NEAR(learning_rate_at(schedule, 14), 0.55, 1e-15);  // half way down
  EXPECT_NEAR(learning_rate_at(schedule, 8), 0.1 + 0.45 * (1 + std::cos(M_PI / 14)), 1e-15);
  EXPECT_NEAR(learning_rate_at(schedule, 21), 0.1, 1e-15);
  EXPECT_EQ(learning_rate_at(schedule, 1000), 0.1);
  EXPECT_EQ(learning_rate_at({2.0, 0.1, 0, 0}, 5), 2);
  EXPECT_EQ(learning_rate_at({2.0, 0.1, 3, 3}, 3), 2);
  EXPECT_EQ(learning_rate_at({2.0, 0.1, 3, 3}, 4), 0.1);
}

TEST(Schedule, DecaysInALineBehindAStableRate) {
  const Schedule schedule{1.0, 0.1, 7, 21, 4};
  EXPECT_NEAR(learning_rate_at(schedule, 3), 3.0 / 7, 1e-15);
  for (const int64_t step : {7, 12, 17}) EXPECT_EQ(learning_rate_at(schedule, step), 1);
  EXPECT_NEAR(learning_rate_at(schedule, 18), 0.775, 1e-15);
  EXPECT_NEAR(learning_rate_at(schedule, 20), 0.325, 1e-15);
  EXPECT_NEAR(learning_rate_at(schedule, 21), 0.1, 1e-15);
  EXPECT_EQ(learning_rate_at(schedule, 22), 0.1);
  // As long as there is room behind the warm-up.
  EXPECT_NEAR(learning_rate_at({1.0, 0, 7, 21, 100}, 14), 0.5, 1e-15);
  EXPECT_EQ(learning_rate_at({1.0, 0, 7, 21, 100}, 7), 1);
}

TEST(Autocast, GuardRestoresWhatItFound) {
  const Tensor a = torch::randn({4, 4}), b = torch::randn({4, 4});
  const auto dtype = [&] { return a.matmul(b).scalar_type(); };
  EXPECT_EQ(dtype(), torch::kFloat);
  {
    AutocastGuard outer(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(dtype(), torch::kBFloat16);
    {
      AutocastGuard inner(torch::kCPU, torch::kHalf, AutocastGuard::Cache::kOff);
      EXPECT_EQ(dtype(), torch::kHalf);
      EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
      AutocastGuard off(torch::kCPU, torch::kHalf, AutocastGuard::Cache::kOff, /*enabled=*/false);
      EXPECT_EQ(dtype(), torch::kFloat);
    }
    EXPECT_EQ(dtype(), torch::kBFloat16);
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  }
  EXPECT_EQ(dtype(), torch::kFloat);
  EXPECT_THROW(AutocastGuard(torch::kCPU, torch::kDouble), UserError);
  EXPECT_EQ(dtype(), torch::kFloat);
}

TEST(Scaler, UnscalesFindsAndAdapts) {
  GradientScaler scaler(torch::kCPU, {.initial_scale = 8, .growth_interval = 2});
  EXPECT_EQ(scaler.scale_loss(torch::full({}, 3.0)).item<float>(), 24);
  std::vector<Tensor> gradients = {torch::full({3}, 16.0), torch::full({2}, 4.0)};
  EXPECT_EQ(scaler.unscale(gradients).item<float>(), 0);
  EXPECT_EQ(gradients[0][0].item<float>(), 2);
  scaler.update(torch::zeros({}));
  scaler.update(torch::zeros({}));
  EXPECT_EQ(scaler.scale().item<float>(), 16) << "doubled after growth_interval good steps";
  gradients[1][1] = INFINITY;
  const Tensor found = scaler.unscale(gradients);
  EXPECT_EQ(found.item<float>(), 1);
  scaler.update(found);
  EXPECT_EQ(scaler.scale().item<float>(), 8);
  EXPECT_THROW(GradientScaler(torch::kCPU, {.growth = 1}), UserError);
}

// A small regression that every step test trains.
struct Problem {
  torch::nn::Linear net{nullptr};
  Tensor x, y;
  std::unique_ptr<AdamW> optimizer;
  Problem() {
    torch::manual_seed(5);
    net = torch::nn::Linear(6, 3);
    x = torch::randn({8, 6});
    y = torch::randn({8, 3});
    optimizer = std::make_unique<AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-2));
  }
  Tensor loss(int64_t first, int64_t last) {
    return F::mse_loss(net(x.slice(0, first, last)), y.slice(0, first, last));
  }
  TrainStep make(LossFunction function, StepOptions options,
                 std::shared_ptr<Parallelism> parallel = nullptr) {
    return TrainStep(net->parameters(), *optimizer, std::move(function), options,
                     std::move(parallel));
  }
};

TEST(Step, AccumulationEqualsTheBigBatch) {
  Problem big, small;
  auto whole = big.make([&](int64_t, int64_t) { return big.loss(0, 8); }, {.max_norm = 0.1});
  auto parts = small.make([&](int64_t, int64_t m) { return small.loss(2 * m, 2 * m + 2); },
                          {.accumulation_steps = 4, .max_norm = 0.1});
  for (int step = 0; step < 5; ++step) {
    const StepResult a = whole.run(step), b = parts.run(step);
    EXPECT_NEAR(a.loss.item<double>(), b.loss.item<double>(), 1e-6);
    EXPECT_NEAR(a.grad_norm.item<double>(), b.grad_norm.item<double>(), 1e-6);
  }
  EXPECT_TRUE(big.net->weight.allclose(small.net->weight, 1e-5, 1e-6));
}

TEST(Step, SkipsWhatIsNotFinite) {
  Problem problem;
  auto step = problem.make(
      [&](int64_t s, int64_t) { return s == 1 ? problem.loss(0, 8) * NAN : problem.loss(0, 8); },
      {.max_norm = 1});
  EXPECT_EQ(step.run(0).skipped.item<float>(), 0);
  const Tensor before = problem.net->weight.detach().clone();
  const StepResult bad = step.run(1);
  EXPECT_EQ(bad.skipped.item<float>(), 1);
  EXPECT_TRUE(std::isnan(bad.loss.item<float>()));
  EXPECT_TRUE(problem.net->weight.equal(before));
  EXPECT_EQ(step.run(2).skipped.item<float>(), 0);
  EXPECT_FALSE(problem.net->weight.equal(before));
}

TEST(Step, SkipsWithOptimizersOfOthers) {
  Problem problem;
  torch::optim::SGD sgd(problem.net->parameters(), torch::optim::SGDOptions(0.1));
  TrainStep step(problem.net->parameters(), sgd,
                 [&](int64_t s, int64_t) { return problem.loss(0, 8) * (s == 0 ? INFINITY : 1.0); },
                 {});
  const Tensor before = problem.net->weight.detach().clone();
  EXPECT_EQ(step.run(0).skipped.item<float>(), 1);
  EXPECT_TRUE(problem.net->weight.equal(before));
  step.run(1);
  EXPECT_FALSE(problem.net->weight.equal(before));
}

TEST(Step, Float16ScalesAndKeepsItsScale) {
  Problem problem;
  auto loss = [&](int64_t s, int64_t) {
    return problem.loss(0, 8).to(torch::kFloat) * (s == 1 ? 1e30 : 1.0);
  };
  auto step = problem.make(loss, {.precision = Precision::kFloat16});
  EXPECT_EQ(step.run(0).skipped.item<float>(), 0);
  EXPECT_EQ(step.run(1).skipped.item<float>(), 1) << "overflows in float16";
  const NamedTensors state = step.state();
  ASSERT_EQ(state.size(), 2u);
  EXPECT_EQ(state[0].second.item<float>(), 32768);
  auto other = problem.make(loss, {.precision = Precision::kFloat16});
  other.load_state(state);
  EXPECT_EQ(other.state()[0].second.item<float>(), 32768);
  EXPECT_THROW(other.load_state({}), UserError);
}

class NotedCalls : public Parallelism {
 public:
  explicit NotedCalls(std::string& calls) : calls_(calls) {}
  std::shared_ptr<void> begin_micro_batch(bool is_last) override {
    calls_ += is_last ? "l" : "n";
    return {nullptr, [this](void*) { calls_ += "/"; }};
  }
  void synchronize_gradients() override { calls_ += "s"; }

 private:
  std::string& calls_;
};

TEST(Step, TellsParallelismOfMicroBatchesAndTheirEnd) {
  Problem problem;
  std::string calls;
  auto step = problem.make([&](int64_t, int64_t) { return calls += "f", problem.loss(0, 8); },
                           {.accumulation_steps = 3}, std::make_shared<NotedCalls>(calls));
  step.run(0);
  EXPECT_EQ(calls, "nf/nf/lf/s");
}

TEST(Step, RefusesALossThatIsNoNumber) {
  Problem problem;
  auto step = problem.make([&](int64_t, int64_t) { return problem.net(problem.x); }, {});
  EXPECT_THROW(step.run(0), UserError);
  EXPECT_THROW(precision_by_name("fp8"), UserError);
}

TEST(Step, RefusesASparseGradient) {
  const Tensor words = at::randn({5, 3}).requires_grad_();
  torch::optim::SGD optimizer({words}, 1e-3);
  for (const bool in_backward : {false, true}) {
    TrainStep step({words}, optimizer,
                   [&](int64_t, int64_t) {
                     return at::embedding(words, at::arange(3), -1, false, /*sparse=*/true).sum();
                   },
                   {.max_norm = 0, .update_in_backward = in_backward});
    testing::expect_sentence([&] { step.run(0); }, {"expected dense gradients", "[5, 3]"});
    optimizer.zero_grad();
  }
}

TEST(TrainStep, RefusesANormThatIsNone) {
  testing::TiedToy toy;
  torch::optim::SGD optimizer(toy.parameters(), 1e-3);
  for (const double max_norm : {-1.0, std::nan("")})
    EXPECT_THROW(TrainStep(toy.parameters(), optimizer, {}, {.max_norm = max_norm}), UserError);
}

}  // namespace
}  // namespace flashstep
