// Recorded steps without a GPU: which are refused, in what order their parts are replayed, and what
// is left of a recording that failed. What a CUDA graph itself does: recorded_step_gpu_test.cc.
#include "flashstep/train/recorded_step.h"

#include <memory>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "flashstep/error.h"
#include "flashstep/optim.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/train/parallelize.h"

namespace flashstep {
namespace {

using torch::Tensor;

struct StagedNet : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(6, 16))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(16, 3))};
  Tensor forward(const Tensor& x) { return out(torch::tanh(in(x))); }
};

// Instead of a graph: what replays calls the work again.
struct RepeatingRecorder {
  int recorded = 0, replayed = 0, throws_at = -1;
  Recorder function() {
    return [this](const std::function<void()>& work) -> std::function<void()> {
      if (recorded++ == throws_at) {
        if (throws_at == 0) work();  // and leaves its gradients
        throw std::runtime_error("the host waits\nat length");
      }
      return [this, work] {
        ++replayed;
        work();
      };
    };
  }
};

class StagedTraining {
 public:
  explicit StagedTraining(int64_t accumulation_steps = 1, bool has_stage = true,
                          std::unique_ptr<torch::optim::Optimizer> (*make)(StagedNet&) = nullptr) {
    torch::manual_seed(5);
    net_ = std::make_unique<StagedNet>();
    optimizer_ =
        make ? make(*net_)
             : std::make_unique<AdamW>(net_->parameters(), torch::optim::AdamWOptions(1e-2));
    const auto stage = [this](int64_t step, int64_t micro_step) {
      const auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * step + micro_step);
      x_.copy_(at::randn({4, 6}, generator));
      y_.copy_(at::randn({4, 3}, generator));
      ++staged_;
    };
    step_ = std::make_unique<TrainStep>(
        net_->parameters(), *optimizer_,
        [this](int64_t, int64_t) { return torch::mse_loss(net_->forward(x_), y_); },
        StepOptions{.accumulation_steps = accumulation_steps, .max_norm = 0.5}, nullptr,
        has_stage ? StageFunction(stage) : StageFunction());
  }
  TrainStep& step() { return *step_; }
  StagedNet& net() { return *net_; }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  int64_t staged() const { return staged_; }
  std::vector<Tensor> weights() const {
    std::vector<Tensor> copies;
    for (const Tensor& parameter : net_->parameters()) copies.push_back(parameter.detach().clone());
    return copies;
  }

 private:
  std::unique_ptr<StagedNet> net_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<TrainStep> step_;
  Tensor x_ = torch::zeros({4, 6}), y_ = torch::zeros({4, 3});
  int64_t staged_ = 0;
};

void expect_same_weights(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(testing::same_bits(actual[i], expected[i])) << i;
}

std::string refusal(TrainStep& step, GraphMode mode, const Recorder& recorder) {
  try {
    const RecordedStep recorded(step, mode, {}, recorder);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(RecordedStep, ModesHaveNames) {
  EXPECT_EQ(graph_mode_by_name("off"), GraphMode::kOff);
  EXPECT_EQ(graph_mode_by_name("auto"), GraphMode::kAuto);
  EXPECT_EQ(graph_mode_by_name("on"), GraphMode::kOn);
  EXPECT_THROW(graph_mode_by_name("yes"), UserError);
}

TEST(RecordedStep, OnACpuStepsAreLaunched) {
  StagedTraining training, expected;
  std::string said;
  RecordedStep steps(training.step(), GraphMode::kAuto, [&](const auto& s) { said += s; });
  for (int64_t i = 0; i < 6; ++i) {
    steps.run(i);
    expected.step().run(i);
  }
  EXPECT_FALSE(steps.is_recorded());
  EXPECT_EQ(said, "") << "there is nothing to know";
  expect_same_weights(training.weights(), expected.weights());
  EXPECT_EQ(refusal(training.step(), GraphMode::kOn, {}),
            "[train] expected steps that a CUDA graph can hold (train.graph on), got a run on the "
            "CPU");
  EXPECT_EQ(refusal(training.step(), GraphMode::kOff, {}), "");
}

TEST(RecordedStep, WhatCannotBeIsKnownBefore) {
  RepeatingRecorder recorder;
  StagedTraining unstaged(1, /*has_stage=*/false);
  EXPECT_EQ(why_not_recorded(unstaged.step()),
            "a loss that makes its own batches (Job::stage is not given)");
  StagedTraining sgd(1, true, [](StagedNet& net) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::SGD>(net.parameters(), torch::optim::SGDOptions(0.1));
  });
  EXPECT_EQ(why_not_recorded(sgd.step()),
            "an optimizer that is not flashstep's AdamW, whose host counts and decides");
  EXPECT_NE(refusal(sgd.step(), GraphMode::kOn, recorder.function()).find("AdamW"),
            std::string::npos);
  std::vector<std::string> said;
  RecordedStep steps(
      sgd.step(), GraphMode::kAuto, [&](const auto& s) { said.push_back(s); }, recorder.function());
  for (int64_t i = 0; i < 6; ++i) steps.run(i);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0],
            "[train] expected steps that a CUDA graph can hold (train.graph auto), got an "
            "optimizer that is not flashstep's AdamW, whose host counts and decides; they are "
            "launched kernel by kernel");
  EXPECT_EQ(recorder.recorded, 0);
  StagedTraining around;
  const AutocastGuard autocast(torch::kCPU, torch::kBFloat16);
  EXPECT_NE(why_not_recorded(around.step()).find("autocast"), std::string::npos);
}

TEST(RecordedStep, RanksThatTalkOverGlooAreRefused) {
  testing::run_ranks(2, [](const Environment& environment) {
    Group group(environment);
    StagedNet net;
    AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
    TrainStep step(
        net.parameters(), optimizer,
        [&](int64_t, int64_t) {
          return net.forward(torch::ones({2, 6})).sum();
        },
        StepOptions(), parallelize(net, ParallelConfig(), &group), [](int64_t, int64_t) {});
    EXPECT_EQ(why_not_recorded(step), "gradients that travel by Gloo, for which hosts wait");
  });
}

TEST(RecordedStep, ReplaysAreStepsInTheirOrder) {
  for (const int64_t accumulation : {1, 2, 3, 5}) {
    SCOPED_TRACE(accumulation);
    RepeatingRecorder recorder;
    StagedTraining training(accumulation), expected(accumulation);
    RecordedStep steps(training.step(), GraphMode::kOn, {}, recorder.function());
    std::vector<StepResult> results;
    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(steps.is_recorded(), i > 3) << i;
      results.push_back(steps.run(i));
    }
    for (int64_t i = 0; i < 8; ++i) {
      const StepResult result = expected.step().run(i);
      EXPECT_TRUE(testing::same_bits(results[i].loss, result.loss)) << i;
      EXPECT_TRUE(testing::same_bits(results[i].grad_norm, result.grad_norm)) << i;
      EXPECT_TRUE(testing::same_bits(results[i].skipped, result.skipped)) << i;
    }
    expect_same_weights(training.weights(), expected.weights());
    EXPECT_EQ(recorder.recorded, std::min<int64_t>(accumulation, 3));
    EXPECT_EQ(recorder.replayed, 5 * accumulation);
    EXPECT_EQ(training.staged(), 8 * accumulation);
  }
}

TEST(RecordedStep, ARecordingThatFailsLeavesLaunchedSteps) {
  for (const int part : {0, 1, 2}) {
    SCOPED_TRACE(part);
    RepeatingRecorder recorder;
    recorder.throws_at = part;
    StagedTraining training(3), expected(3);
    std::vector<std::string> said;
    RecordedStep steps(
        training.step(), GraphMode::kAuto, [&](const auto& s) { said.push_back(s); },
        recorder.function());
    for (int64_t i = 0; i < 6; ++i) {
      steps.run(i);
      expected.step().run(i);
    }
    expect_same_weights(training.weights(), expected.weights());
    EXPECT_FALSE(steps.is_recorded());
    ASSERT_EQ(said.size(), 1u);
    EXPECT_NE(said[0].find("got one that failed while it was recorded: the host waits; they are"),
              std::string::npos)
        << said[0];

    recorder.recorded = 0;
    StagedTraining other(3);
    RecordedStep insisting(other.step(), GraphMode::kOn, {}, recorder.function());
    for (int64_t i = 0; i < 3; ++i) insisting.run(i);
    EXPECT_THROW(insisting.run(3), UserError);
  }
}

TEST(RecordedStep, WhatChangesUnderARecordingIsRecordedAnew) {
  RepeatingRecorder recorder;
  StagedTraining training, expected;
  RecordedStep steps(training.step(), GraphMode::kOn, {}, recorder.function());
  int64_t at = 0;
  const auto take = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      steps.run(at);
      expected.step().run(at++);
    }
  };
  const auto in_both = [&](const auto& change) {
    for (StagedTraining* one : {&training, &expected}) change(*one);
  };
  take(5);
  EXPECT_EQ(recorder.recorded, 1);
  in_both([](StagedTraining& one) {  // its values only
    const torch::NoGradGuard no_grad;
    one.net().in->weight.mul_(1.5);
  });
  take(2);
  EXPECT_EQ(recorder.recorded, 1);
  in_both([](StagedTraining& one) { one.net().in->weight.set_data(one.net().in->weight.clone()); });
  take(1);
  EXPECT_FALSE(steps.is_recorded());
  take(4);
  EXPECT_EQ(recorder.recorded, 2);
  in_both([](StagedTraining& one) {
    auto& options = one.optimizer().param_groups()[0].options();
    static_cast<torch::optim::AdamWOptions&>(options).weight_decay(0.5);
  });
  take(4);
  EXPECT_EQ(recorder.recorded, 3);
  in_both([](StagedTraining& one) { one.optimizer().param_groups()[0].options().set_lr(1e-3); });
  take(2);
  EXPECT_EQ(recorder.recorded, 3);
  expect_same_weights(training.weights(), expected.weights());
}

}  // namespace
}  // namespace flashstep
