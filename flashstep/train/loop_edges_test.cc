// The loop with what users bring: modules that no file can hold, optimizers of classes of their
// own, evaluations that throw, runs that shall be quiet.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "flashstep/checkpoint.h"
#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/loop.h"
#include "flashstep/optim.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/train/checkpoint_folder.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using testing::expect_sentence;
using torch::Tensor;

// y = scaler (x w): a name that is also the loss scale's in checkpoints.
struct ScaledNet : torch::nn::Module {
  Tensor w = register_parameter("w", at::linspace(-1, 1, 12).view({4, 3}).clone());
  Tensor scaler = register_parameter("scaler", at::ones({}));
  Tensor loss(int64_t step) const {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step));
    return (at::mm(at::randn({5, 4}, generator), w) * scaler - 1).square().mean();
  }
};

struct OwnOptions : torch::optim::OptimizerCloneableOptions<OwnOptions> {
  double rate = 0.1;
};

struct OwnState : torch::optim::OptimizerParamState {
  Tensor velocity;
};

// Momentum, in a class that overrides nothing but step().
struct OwnOptimizer : torch::optim::Optimizer {
  bool has_state;
  OwnOptimizer(std::vector<Tensor> parameters, bool keeps_velocity)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<OwnOptions>()),
        has_state(keeps_velocity) {}
  Tensor step(LossClosure) override {
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : param_groups_.front().params()) {
      Tensor change = parameter.grad();
      if (has_state) {
        auto& slot = state_[parameter.unsafeGetTensorImpl()];
        if (!slot) slot = std::make_unique<OwnState>();
        Tensor& velocity = static_cast<OwnState&>(*slot).velocity;
        velocity = velocity.defined() ? 0.9 * velocity + change : change.clone();
        change = velocity;
      }
      parameter.sub_(change, 0.1);
    }
    return {};
  }
};

class LoopEdges : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() /
                 str("loop_edges_", ::getpid(), "_",
                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  LoopResult train(ScaledNet& net, torch::optim::Optimizer& optimizer, int64_t steps,
                   const std::function<void(Job&, LoopOptions&)>& change = {}) {
    Job job{net, optimizer, [&](int64_t step, int64_t) { return net.loss(step); }};
    LoopOptions options;
    options.run_directory = directory_;
    options.steps = steps;
    options.resume = true;
    options.quiet = true;
    options.step.max_norm = 0;
    if (change) change(job, options);
    return run(job, options);
  }

  fs::path directory_;
};

TEST_F(LoopEdges, AModuleThatNoFileCanHoldIsRefusedBeforeItsSteps) {
  for (const Tensor& buffer : {at::eye(3).to_sparse(), at::zeros({2}, at::kComplexDouble)}) {
    ScaledNet net;
    net.register_buffer("adjacency", buffer);
    AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
    expect_sentence([&] { train(net, optimizer, 3); }, {"[safetensors] expected", "\"adjacency\""});
    EXPECT_TRUE(at::equal(net.scaler, at::ones({}))) << "a step was taken";
  }
}

TEST_F(LoopEdges, AnOptimizerThatDoesNotSaveItsStateIsRefusedAfterAStep) {
  for (const int64_t skipped : {0, 1}) {  // a step that is skipped makes no state
    ScaledNet net;
    OwnOptimizer optimizer(net.parameters(), /*keeps_velocity=*/true);
    int64_t steps = 0;
    expect_sentence(
        [&] {
          train(net, optimizer, 5, [&](Job& job, LoopOptions&) {
            job.loss = [&](int64_t step, int64_t) {
              return ++steps <= skipped ? net.loss(step) * NAN : net.loss(step);
            };
          });
        },
        {"expected an optimizer whose save() writes its state", "OwnOptimizer"});
    EXPECT_EQ(steps, 1 + skipped);
  }
}

TEST_F(LoopEdges, AnOptimizerMayHaveNoStateAndTellNoRate) {
  ScaledNet net;
  OwnOptimizer optimizer(net.parameters(), /*keeps_velocity=*/false);
  EXPECT_EQ(train(net, optimizer, 3).steps, 3);
  std::ifstream file(directory_ / "metrics.jsonl");
  std::string line;
  std::getline(file, line);
  EXPECT_NE(line.find("\"lr\":null"), line.npos) << line;
}

TEST_F(LoopEdges, AParameterCalledScalerResumes) {
  ScaledNet never_stopped, net;
  {
    AdamW optimizer(never_stopped.parameters(), torch::optim::AdamWOptions(1e-2));
    for (int64_t step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      never_stopped.loss(step).backward();
      optimizer.step();
    }
  }
  for (const int64_t steps : {3, 6}) {
    ScaledNet fresh;
    AdamW optimizer(fresh.parameters(), torch::optim::AdamWOptions(1e-2));
    train(fresh, optimizer, steps);
    net = fresh;
  }
  EXPECT_TRUE(testing::same_bits(net.scaler, never_stopped.scaler));
  EXPECT_TRUE(testing::same_bits(net.w, never_stopped.w));
}

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST_F(LoopEdges, ALastEvaluationThatThrowsCostsNoStepsAndIsMadeUp) {
  const auto run_with = [&](bool evaluates, bool samples) {
    ScaledNet net;
    AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
    return train(net, optimizer, 4, [&](Job& job, LoopOptions& options) {
      const auto is_trained = [&net] { return !at::equal(net.scaler, at::ones({})); };
      job.held_out_loss = [=]() -> double {
        if (is_trained() && !evaluates) throw MachineError("no memory to evaluate");
        return is_trained() ? 0.5 : 1;
      };
      job.sample = [=]() -> std::string {
        if (is_trained() && !samples) throw MachineError("no memory to sample");
        return "text";
      };
      options.evaluate_every = 100;
    });
  };
  const auto kept = [&] { return list_checkpoints(directory_ / "checkpoints"); };
  const auto last_line = [&] { return lines_of(directory_ / "metrics.jsonl").back(); };
  EXPECT_THROW(run_with(false, true), MachineError);
  EXPECT_EQ(kept(), std::vector<int64_t>{4});
  EXPECT_EQ(last_line().find("val_loss"), std::string::npos) << last_line();
  EXPECT_THROW(run_with(true, false), MachineError);
  for (int again = 0; again < 2; ++again) {  // the second has nothing to make up
    const LoopResult result = run_with(true, again == 0);
    EXPECT_EQ(result.first_held_out_loss, 1);
    EXPECT_EQ(result.held_out_loss, 0.5);
    EXPECT_EQ(lines_of(directory_ / "metrics.jsonl").size(), 5u);
    EXPECT_NE(last_line().find("\"step\":4,\"loss\":"), std::string::npos) << last_line();
    EXPECT_NE(last_line().find("\"val_loss\":0.5"), std::string::npos) << last_line();
    EXPECT_EQ(
        lines_of(directory_ / "samples.txt"),
        (std::vector<std::string>{"=== after step 0 ===", "text", "=== after step 4 ===", "text"}));
  }
}

TEST_F(LoopEdges, StepsThatAreTakenAnewAreSampledAnew) {
  for (const std::string text : {"before", "after"}) {
    ScaledNet net;
    AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
    train(net, optimizer, 4, [&](Job& job, LoopOptions& options) {
      options.checkpointing_interval = 2;
      job.sample = [&] { return text; };
    });
    fs::remove_all(directory_ / "checkpoints" / "step_00000004");
  }
  EXPECT_EQ(lines_of(directory_ / "samples.txt").back(), "after");
}

TEST_F(LoopEdges, ALossThatIsNoNumberIsAskedForOnce) {
  for (int run = 0; run < 2; ++run) {
    ScaledNet net;
    AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
    int64_t calls = 0;
    train(net, optimizer, 2, [&](Job& job, LoopOptions&) {
      job.held_out_loss = [&]() -> double {
        ++calls;
        return NAN;
      };
    });
    EXPECT_EQ(calls, run == 0 ? 2 : 0);  // before the first step and after the last
    const std::string line = lines_of(directory_ / "metrics.jsonl").back();
    const size_t member = line.find("\"val_loss\":null");
    EXPECT_NE(member, std::string::npos) << line;
    EXPECT_EQ(line.find("val_loss", member + 2), std::string::npos) << line;
  }
}

// Whatever rank 0 does alone or all do together.
TEST_F(LoopEdges, RanksSaveBeforeALastEvaluationThatThrows) {
  for (const std::string what : {"evaluates", "evaluates together", "samples"}) {
    const auto directory = [&](pid_t starter) {
      return fs::temp_directory_path() / str("loop_edges_ranks_", starter, "_", what);
    };
    testing::start_ranks(
        2,
        [&](const Environment& environment) {
          const Group group(environment);
          directory_ = directory(::getppid());
          ScaledNet net;
          AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
          train(net, optimizer, 4, [&](Job& job, LoopOptions& options) {
            job.parallel = data_parallelism(net, group);
            job.evaluates_together = what == "evaluates together";
            options.evaluate_every = 100;
            const auto fail = [&net, &group, what](const std::string& where) {
              if (where == what && group.is_first() && !at::equal(net.scaler, at::ones({})))
                throw MachineError("no memory");
            };
            job.held_out_loss = [=]() -> double {
              fail("evaluates");
              fail("evaluates together");
              return 1;
            };
            job.sample = [=] {
              fail("samples");
              return std::string();
            };
          });
        },
        [&](testing::Ranks& ranks) {
          EXPECT_TRUE(ranks.wait_for_all(60)) << what << "\n" << ranks.all_output();
          EXPECT_NE(ranks.exit_code(0), 0) << ranks.all_output();
          EXPECT_EQ(list_checkpoints(directory(::getpid()) / "checkpoints"),
                    std::vector<int64_t>{4})
              << what << "\n"
              << ranks.all_output();
          fs::remove_all(directory(::getpid()));
        });
  }
}

TEST_F(LoopEdges, AQuietRunWarnsOfADamagedCheckpoint) {
  const auto often = [](Job&, LoopOptions& options) { options.checkpointing_interval = 2; };
  {
    ScaledNet net;
    AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
    ::testing::internal::CaptureStderr();
    train(net, optimizer, 4, often);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  }
  std::ofstream(directory_ / "checkpoints" / "step_00000004" / "model.safetensors") << "x";
  ScaledNet net;
  AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
  ::testing::internal::CaptureStderr();
  train(net, optimizer, 5, often);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("step_00000004"), said.npos) << said;
}

}  // namespace
}  // namespace flashstep
