// What the tests of recorded steps on GPUs have in common: a small Transformer that is trained on
// the same tokens whichever way its steps are taken.
#pragma once

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include "flashstep/model.h"
#include "flashstep/testing/compare.h"
#include "flashstep/train/evaluate.h"
#include "flashstep/train/parallelize.h"
#include "flashstep/train/parts.h"
#include "flashstep/train/recorded_step.h"

namespace flashstep {

inline ModelConfig recorded_model() {
  ModelConfig model;
  model.vocab_size = 97;
  model.context_length = 48;
  model.d_model = 128;
  model.d_ff = 352;
  model.num_layers = 2;
  model.num_heads = 2;
  return resolved(model);
}

struct RecordedCase {
  ModelConfig model = recorded_model();
  Precision precision = Precision::kFloat32;
  int64_t accumulation_steps = 1, steps = 9;
  double max_norm = 0.5;
  bool update_in_backward = false;
  at::ScalarType moments = at::kFloat;
  std::string optimizer = "adamw";
  ParallelConfig parallel;
  std::function<void(TransformerImpl& model)> prepare;  // once, before the first step
  // Changes the loss of a micro-batch.
  std::function<torch::Tensor(const torch::Tensor& loss, TransformerImpl& model)> loss_hook;
  // Between two steps, before number `step`.
  std::function<void(int64_t step, TransformerImpl& model)> before_step;
  std::function<void(int64_t step, TransformerImpl& model, Parallelism& parallel)> between;
};

struct RecordedRun {
  std::vector<torch::Tensor> results;  // (3): loss, norm, skipped of each step; on the CPU
  std::vector<torch::Tensor> weights;
  std::vector<std::string> said;
  bool was_recorded = false;
};

// Its backward makes the host wait.
struct Waiting : torch::autograd::Function<Waiting> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    EXPECT_FALSE(gradients[0].isnan().any().item<bool>());
    return {gradients[0]};
  }
};

// As flashstep train's set_up_machine.
inline void be_deterministic() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  at::globalContext().setDeterministicCuDNN(true);
}

inline RecordedRun train_recorded(const RecordedCase& c, GraphMode mode, at::Device device,
                                  Group* group = nullptr) {
  be_deterministic();
  torch::manual_seed(7);
  Transformer model(c.model, /*seed=*/3, device);
  if (c.prepare) c.prepare(*model);
  ParallelConfig parallel = c.parallel;
  if (group == nullptr) parallel.wrapper = "none";
  ParallelizeOptions options;
  if (c.precision != Precision::kFloat32)
    options.autocast = c.precision == Precision::kBFloat16 ? at::kBFloat16 : at::kHalf;
  const auto ranks = parallelize(*model, parallel, group, options);
  Config config;
  config.optimizer.kind = c.optimizer;
  const auto optimizer =
      make_optimizer(optimizer_groups(model, config), torch::optim::AdamWOptions(1e-2), parallel,
                     *ranks, c.moments);
  const auto ids = [&] {
    return at::zeros({3, c.model.context_length}, at::TensorOptions(device).dtype(at::kLong));
  };
  const at::Tensor inputs = ids(), targets = ids();
  const auto stage = [&](int64_t step, int64_t micro_step) {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(
        static_cast<uint64_t>(1000 * ranks->rank() + 100 * step + micro_step));
    for (const at::Tensor& staged : {inputs, targets})
      staged.copy_(at::randint(c.model.vocab_size, staged.sizes(), generator, at::kLong));
  };
  TrainStep step(
      model->parameters(), *optimizer,
      [&](int64_t, int64_t) {
        const at::Tensor loss = model->loss(inputs, targets);  // as flashstep train
        return c.loss_hook ? c.loss_hook(loss, *model) : loss;
      },
      StepOptions{.accumulation_steps = c.accumulation_steps,
                  .max_norm = c.max_norm,
                  .precision = c.precision,
                  .update_in_backward = c.update_in_backward},
      ranks, stage);
  RecordedRun run;
  {
    RecordedStep steps(step, mode, [&](const auto& sentence) { run.said.push_back(sentence); });
    std::vector<StepResult> results;
    for (int64_t i = 0; i < c.steps; ++i) {
      for (auto& parameters : optimizer->param_groups())
        parameters.options().set_lr(1e-3 * static_cast<double>(i + 1));
      if (c.before_step) c.before_step(i, *model);
      if (c.between) c.between(i, *model, *ranks);
      results.push_back(steps.run(i));
    }
    run.was_recorded = steps.is_recorded();
    for (const StepResult& result : results) {
      run.results.push_back(
          at::stack({result.loss, result.grad_norm.to(device), result.skipped}).cpu());
    }
    if (const ShardedUnits* const units = ranks->units()) {
      std::map<std::string, at::Tensor> whole;
      for (const auto& [name, tensor] : units->gather()) whole[name] = tensor;
      for (const auto& item : model->named_parameters())
        run.weights.push_back(whole.at(item.key()).cpu());
    } else {
      for (const at::Tensor& parameter : model->parameters())
        run.weights.push_back(parameter.detach().cpu());
    }
  }
  if (group != nullptr) group->barrier();  // nobody frees what others still send
  return run;
}

inline void expect_same_weights(const RecordedRun& actual, const RecordedRun& expected) {
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (size_t i = 0; i < actual.weights.size(); ++i)
    EXPECT_TRUE(testing::same_bits(actual.weights[i], expected.weights[i])) << "weight " << i;
}

inline void expect_same_runs(const RecordedRun& actual, const RecordedRun& expected) {
  ASSERT_EQ(actual.results.size(), expected.results.size());
  for (size_t i = 0; i < actual.results.size(); ++i)
    EXPECT_TRUE(testing::same_bits(actual.results[i], expected.results[i])) << "step " << i;
  expect_same_weights(actual, expected);
}

// Recorded and launched, and the two alike; returns the recorded run.
inline RecordedRun expect_recorded_as_launched(const RecordedCase& c, at::Device device,
                                               Group* group = nullptr) {
  const RecordedRun launched = train_recorded(c, GraphMode::kOff, device, group);
  RecordedRun recorded = train_recorded(c, GraphMode::kOn, device, group);
  EXPECT_FALSE(launched.was_recorded);
  EXPECT_TRUE(recorded.was_recorded);
  expect_same_runs(recorded, launched);
  return recorded;
}

}  // namespace flashstep
