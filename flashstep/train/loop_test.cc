// The loop with a module of a user's own: runs, stops, resumes bit for bit, refuses.
#include "flashstep/loop.h"

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <thread>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "flashstep/checkpoint.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/optim.h"
#include "flashstep/testing/toy_modules.h"
#include "flashstep/train/module_tensors.h"
#include "flashstep/train/run_directory.h"
#include "flashstep/train/run_state.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using torch::Tensor;

// Dropout, a buffer and a tied weight: all that a checkpoint must not forget.
struct Net : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  explicit Net(int64_t width = 12) {
    torch::manual_seed(11);
    in = register_module("in", torch::nn::Linear(6, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
    out = register_module("out", torch::nn::Linear(width, 6));
  }
  Tensor forward(const Tensor& x) { return out(dropout(torch::relu(norm(in(x))))); }
};

struct Experiment {
  Net net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  LoopOptions options;
  int64_t nan_from = -1, nan_until = -1;  // steps whose loss is not finite
  int64_t signal_at = -1, throw_at = -1;  // steps during which something comes
  int evaluations = 0, samples = 0, evaluation_ms = 0;
  std::function<void(int64_t step)> before_step;

  explicit Experiment(const fs::path& directory, int64_t width = 12) : net(width) {
    optimizer = std::make_unique<AdamW>(net.parameters(), torch::optim::AdamWOptions(1e-2));
    options.run_directory = directory;
    options.steps = 20;
    options.step.max_norm = 1;
    options.step.accumulation_steps = 2;
    options.evaluate_every = 5;
    options.checkpointing_interval = 4;
    options.quiet = true;
  }

  LoopResult run() {
    Job job{net, *optimizer,
            [this](int64_t step, int64_t micro_step) { return loss(step, micro_step); }};
    job.learning_rate = [](int64_t t) { return learning_rate_at({1e-2, 1e-3, 5, 20}, t); };
    job.held_out_loss = [this] {
      ++evaluations;
      std::this_thread::sleep_for(std::chrono::milliseconds(evaluation_ms));
      torch::NoGradGuard no_grad;
      net.eval();
      const Tensor x = torch::ones({4, 6});
      const double value = torch::mse_loss(net.forward(x), x).item<double>();
      net.train();
      return value;
    };
    job.sample = [this] { return flashstep::str("sample ", ++samples); };
    job.tokens_per_step = 16;
    return flashstep::run(job, options);
  }

  Tensor loss(int64_t step, int64_t micro_step) {
    if (before_step && micro_step == 0) before_step(step);
    if (step == signal_at && micro_step == 0) ::raise(SIGTERM);
    if (step == throw_at) throw MachineError("pulled the plug");
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 + 10 * step + micro_step);
    const Tensor x = at::randn({8, 6}, generator);
    const bool bad = step >= nan_from && step < nan_until;
    return torch::mse_loss(net.forward(x), x.flip({1})) * (bad ? std::nan("") : 1.0);
  }
};

class LoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    torch::set_num_threads(1);  // these tensors are too small for two
    directory_ = fs::temp_directory_path() /
                 flashstep::str("loop_test_", ::getpid(), "_",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }
  fs::path at(const std::string& name) const { return directory_ / name; }

  fs::path directory_;
};

// metrics.jsonl without what depends on the clock.
std::vector<nlohmann::json> metrics(const fs::path& run) {
  std::ifstream file(run / "metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(nlohmann::json::parse(line));
    lines.back().erase("tokens_per_s");
    lines.back().erase("step_ms");
  }
  return lines;
}

void expect_same(const fs::path& a, const fs::path& b) {
  const auto first = load_newest(a / "checkpoints", [](const std::string&) {});
  const auto second = load_newest(b / "checkpoints", [](const std::string&) {});
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->step, second->step);
  for (const auto part : {&Checkpoint::model, &Checkpoint::optimizer}) {
    ASSERT_EQ(((*first).*part).size(), ((*second).*part).size());
    for (size_t i = 0; i < ((*first).*part).size(); ++i) {
      EXPECT_EQ(((*first).*part)[i].first, ((*second).*part)[i].first);
      EXPECT_TRUE(((*first).*part)[i].second.equal(((*second).*part)[i].second))
          << ((*first).*part)[i].first;
    }
  }
  EXPECT_EQ(first->state_json, second->state_json);
  EXPECT_EQ(metrics(a), metrics(b));
}

TEST_F(LoopTest, TrainsAndLeavesEverything) {
  Experiment experiment(at("run"));
  const LoopResult result = experiment.run();
  EXPECT_EQ(result.steps, 20);
  EXPECT_LT(result.held_out_loss, result.first_held_out_loss);
  EXPECT_EQ(experiment.evaluations, 5);
  const auto lines = metrics(at("run"));
  ASSERT_EQ(lines.size(), 21u);
  for (size_t step = 0; step < lines.size(); ++step) {
    EXPECT_EQ(lines[step].at("step"), step);
    EXPECT_EQ(lines[step].contains("val_loss"), step % 5 == 0);
    EXPECT_EQ(lines[step].contains("loss"), step > 0);
  }
  EXPECT_DOUBLE_EQ(lines[5].at("lr"), 1e-2);
  EXPECT_DOUBLE_EQ(lines[20].at("lr"), 1e-3);
  for (const char* name : {"loss.svg", "config.json", "tensorboard"})
    EXPECT_TRUE(fs::exists(at("run") / name));
  EXPECT_EQ(read_file(at("run") / "samples.txt"),
            "=== after step 0 ===\nsample 1\n=== after step 20 ===\nsample 2\n");
  EXPECT_EQ(list_checkpoints(at("run") / "checkpoints"), (std::vector<int64_t>{16, 20}));
}

TEST_F(LoopTest, CheckpointsOnlyTheLastWithoutInterval) {
  Experiment experiment(at("run"));
  experiment.options.checkpointing_interval = -1;
  experiment.run();
  EXPECT_EQ(list_checkpoints(at("run") / "checkpoints"), (std::vector<int64_t>{20}));
}

// A checkpoint of 34 MB has no name yet when the next step begins, and gets it before the next one.
TEST_F(LoopTest, StepsAreTakenWhileACheckpointIsWritten) {
  Experiment experiment(at("run"), /*width=*/200'000);
  experiment.options.steps = 8;
  const auto is_there = [&] { return !list_checkpoints(at("run") / "checkpoints").empty(); };
  experiment.before_step = [&](int64_t step) {
    if (step <= 4) {
      EXPECT_FALSE(is_there()) << step;
    } else if (step == 7) {
      EXPECT_TRUE(is_there());
    } else {
      for (int i = 0; i < 500 && !is_there(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  };
  experiment.run();
}

TEST_F(LoopTest, ResumedEqualsNeverStopped) {
  Experiment whole(at("whole"));
  whole.run();
  for (const int64_t stop : {0, 3, 4, 9, 15, 19}) {
    const fs::path run = at(flashstep::str("stopped_", stop));
    Experiment first(run);
    first.throw_at = stop;
    EXPECT_THROW(first.run(), MachineError);
    const std::vector<int64_t> saved = list_checkpoints(run / "checkpoints");
    EXPECT_EQ(saved.empty() ? 0 : saved.back(), stop / 4 * 4) << "also what was in writing";
    Experiment second(run);
    second.options.resume = true;
    second.run();
    expect_same(at("whole"), run);
  }
}

TEST_F(LoopTest, ASignalFinishesTheStepAndSaves) {
  Experiment whole(at("whole"));
  whole.run();
  Experiment first(at("run"));
  first.signal_at = 6;
  try {
    first.run();
    FAIL() << "expected Interrupted";
  } catch (const Interrupted& interrupted) {
    EXPECT_EQ(interrupted.signal(), SIGTERM);
    EXPECT_NE(std::string(interrupted.what()).find("all is saved in"), std::string::npos);
  }
  EXPECT_EQ(list_checkpoints(at("run") / "checkpoints").back(), 7);
  Experiment second(at("run"));
  second.options.resume = true;
  second.run();
  expect_same(at("whole"), at("run"));
}

TEST_F(LoopTest, OtherOptimizersResumeToo) {
  const auto make = [&](const char* name) {
    auto experiment = std::make_unique<Experiment>(at(name));
    experiment->optimizer =
        std::make_unique<torch::optim::Adam>(experiment->net.parameters(), 1e-2);
    return experiment;
  };
  make("whole")->run();
  auto first = make("run");
  first->throw_at = 10;
  EXPECT_THROW(first->run(), MachineError);
  auto second = make("run");
  second->options.resume = true;
  second->run();
  const auto whole = load_newest(at("whole") / "checkpoints", {}),
             resumed = load_newest(at("run") / "checkpoints", {});
  for (size_t i = 0; i < whole->model.size(); ++i) {
    EXPECT_TRUE(whole->model[i].second.equal(resumed->model[i].second));
  }
  EXPECT_EQ(metrics(at("whole")), metrics(at("run")));
}

// One tensor under two names: updated once, kept once, and given back.
TEST_F(LoopTest, TiedTensorsResumeToo) {
  const auto run = [&](const char* name, int64_t throw_at, bool resume) {
    torch::manual_seed(7);
    testing::TiedToy net;
    AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
    Job job{net, optimizer, [&](int64_t step, int64_t) {
              if (step == throw_at) throw MachineError("pulled the plug");
              const auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 + step);
              return net.forward(at::randn({8, 10}, generator)).square().mean();
            }};
    LoopOptions options;
    options.run_directory = at(name);
    options.resume = resume;
    options.steps = 6;
    options.step.max_norm = 0.1;
    options.checkpointing_interval = 2;
    options.quiet = true;
    flashstep::run(job, options);
  };
  run("whole", -1, false);
  EXPECT_THROW(run("run", 3, false), MachineError);
  run("run", -1, true);
  expect_same(at("whole"), at("run"));
  const auto saved = load_newest(at("run") / "checkpoints", nullptr);
  EXPECT_EQ(saved->model.size(), 4u);
  EXPECT_EQ(saved->optimizer.size(), 3 * 4u);
  for (const auto& [name, tensor] : saved->optimizer) {
    if (name == "fc2/step") {
      EXPECT_EQ(tensor.item<float>(), 6);
    }
  }
}

TEST_F(LoopTest, SkippedStepsAreCountedAndAFewAreForgiven) {
  Experiment experiment(at("run"));
  experiment.nan_from = 3, experiment.nan_until = 6;
  experiment.options.max_skipped_in_a_row = 4;
  EXPECT_EQ(experiment.run().skipped, 3);
  const auto lines = metrics(at("run"));
  EXPECT_TRUE(lines[4].contains("skipped") && lines[4].at("loss").is_null());
  EXPECT_FALSE(lines[7].contains("skipped"));
}

TEST_F(LoopTest, ManyInARowStopTheRun) {
  Experiment experiment(at("run"));
  experiment.nan_from = 3, experiment.nan_until = 20;
  experiment.options.max_skipped_in_a_row = 4;
  try {
    experiment.run();
    FAIL() << "expected UserError";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("4 steps in a row, up to step 7"), std::string::npos)
        << error.what();
  }
  // What was learned before is kept, and goes on once the steps are finite again.
  const auto saved = load_newest(at("run") / "checkpoints", nullptr);
  ASSERT_TRUE(saved.has_value());
  EXPECT_EQ(saved->step, 7) << "on the CPU the run ends at the step that was one too many";
  for (const auto& [name, tensor] : saved->model) {
    EXPECT_TRUE(!tensor.is_floating_point() || tensor.isfinite().all().item<bool>()) << name;
  }
  Experiment again(at("run"));
  again.options.resume = true;
  EXPECT_EQ(again.run().steps, 20);
}

TEST_F(LoopTest, TheFirstSkippedStepStopsTheRunThatForgivesNone) {
  Experiment experiment(at("run"));
  experiment.nan_from = 1, experiment.nan_until = 20;
  experiment.options.max_skipped_in_a_row = 1;
  experiment.options.evaluate_every = 0;
  try {
    experiment.run();
    FAIL() << "expected UserError";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("in 1 step in a row, up to step 2;"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(list_checkpoints(at("run") / "checkpoints").back(), 2);
}

// One more skipped step does not end the run that goes on after too many.
TEST_F(LoopTest, WhoResumesAfterGivingUpIsCountedAnew) {
  Experiment experiment(at("run"));
  experiment.nan_from = 3, experiment.nan_until = 20;
  experiment.options.max_skipped_in_a_row = 4;
  experiment.options.evaluate_every = 16;
  experiment.options.checkpointing_interval = -1;
  EXPECT_THROW(experiment.run(), UserError);
  const int64_t saved = list_checkpoints(at("run") / "checkpoints").back();
  Experiment again(at("run"));
  again.options = experiment.options;
  again.options.resume = true;
  again.nan_from = saved, again.nan_until = saved + 1;
  const LoopResult result = again.run();
  EXPECT_EQ(result.steps, 20);
  EXPECT_EQ(result.skipped, saved - 3 + 1);
}

TEST_F(LoopTest, EvaluatingAndSavingAreNoTimeOfAStep) {
  Experiment experiment(at("run"));
  experiment.evaluation_ms = 300;
  experiment.run();
  std::ifstream file(at("run") / "metrics.jsonl");
  int evaluations = 0, slow = 0;
  for (std::string line; std::getline(file, line);) {
    const auto row = nlohmann::json::parse(line);
    evaluations += row.contains("val_loss");
    slow += row.value("step_ms", 0.0) >= experiment.evaluation_ms;
  }
  // A busy machine holds up a step now and then, but not one for each evaluation.
  EXPECT_GE(evaluations, 3);
  EXPECT_LT(slow, evaluations / 2.0);
}

TEST_F(LoopTest, RefusesADirectoryWithARun) {
  Experiment(at("run")).run();
  Experiment again(at("run"));
  EXPECT_THROW(again.run(), UserError);
  again.options.resume = true;
  EXPECT_EQ(again.run().steps, 20) << "nothing left to do";
  EXPECT_EQ(metrics(at("run")).size(), 21u);
}

TEST_F(LoopTest, RefusesADirectoryInUse) {
  RunDirectory held(at("run"), false);
  Experiment experiment(at("run"));
  EXPECT_THROW(experiment.run(), UserError);
}

TEST_F(LoopTest, RefusesSeveralProcessesWithoutAGroup) {
  const std::pair<const char*, const char*> launched[] = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"FLASHSTEP_LAUNCH", "1"}};
  for (const auto& [name, value] : launched) setenv(name, value, /*replace=*/1);
  Experiment experiment(at("run"));
  std::string sentence;
  try {
    experiment.run();
  } catch (const UserError& error) {
    sentence = error.what();
  }
  for (const auto& [name, value] : launched) unsetenv(name);
  EXPECT_NE(sentence.find("with the Group of 2 ranks"), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("started by flashstep launch"), std::string::npos) << sentence;
  EXPECT_FALSE(fs::exists(at("run")));
}

TEST_F(LoopTest, RefusesLessThanNoSteps) {
  Experiment experiment(at("run"));
  experiment.options.steps = -1;
  EXPECT_THROW(experiment.run(), UserError);
  EXPECT_FALSE(fs::exists(at("run")));
}

TEST_F(LoopTest, ResumingWithoutCheckpointStartsAnew) {
  Experiment experiment(at("run"));
  experiment.options.resume = true;
  EXPECT_EQ(experiment.run().steps, 20);
}

TEST_F(LoopTest, RefusesTheCheckpointOfAnotherModule) {
  Experiment(at("run")).run();
  Experiment wider(at("run"), 13);
  wider.options.resume = true;
  try {
    wider.run();
    FAIL() << "expected UserError";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("expected in.weight of shape [13, 6]"),
              std::string::npos)
        << error.what();
  }
  Experiment shorter(at("run"));
  shorter.options.resume = true;
  shorter.options.steps = 10;
  EXPECT_THROW(shorter.run(), UserError);
}

TEST_F(LoopTest, WeightsStartAnotherModule) {
  Net source, target;
  torch::nn::init::zeros_(target.in->weight);
  load_module(target, in_memory(module_tensors(source)), "a test");
  EXPECT_TRUE(target.in->weight.equal(source.in->weight));
  NamedTensors weights = module_tensors(source);
  weights.emplace_back("more", torch::ones({1}));
  EXPECT_THROW(load_module(target, in_memory(weights), "a test"), UserError);
  weights.resize(2);
  EXPECT_THROW(load_module(target, in_memory(weights), "a test"), UserError);
}

}  // namespace
}  // namespace flashstep
