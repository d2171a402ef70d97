// The training loop on several ranks against the same loop on one.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/checkpoint.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/loop.h"
#include "flashstep/ops.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/train/parallelize.h"
#include "flashstep/train/run_directory.h"
#include "flashstep/train/run_state.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using torch::Tensor;

constexpr int64_t kRows = 12;  // of one micro-batch, over all ranks
constexpr int64_t kSteps = 12;

struct TwoLayers : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(6, 16))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(16, 3))};
  Tensor forward(const Tensor& x) { return out(torch::tanh(in(x))); }
};

// A checkpoint asks for the reducer after all that ranks do together for it.
class SlowToSave : public Parallelism {
 public:
  SlowToSave(std::shared_ptr<Parallelism> ranks, std::chrono::seconds saving)
      : ranks_(std::move(ranks)), saving_(saving) {}
  const Group* group() const override { return ranks_->group(); }
  GradientReducer* reducer() const override {
    std::this_thread::sleep_for(saving_);
    return ranks_->reducer();
  }
  std::shared_ptr<void> begin_micro_batch(bool is_last) override {
    return ranks_->begin_micro_batch(is_last);
  }
  void synchronize_gradients() override { ranks_->synchronize_gradients(); }
  ShardedUnits* units() const override { return ranks_->units(); }
  Tensor call(const std::function<Tensor()>& forward) override { return ranks_->call(forward); }

 private:
  std::shared_ptr<Parallelism> ranks_;
  std::chrono::seconds saving_;
};

struct ParallelExperiment {
  fs::path directory;
  ParallelConfig parallel;
  int64_t steps = kSteps, accumulation_steps = 2, checkpointing_interval = 5;
  bool resume = false;
  bool recomputes = false;  // the forward pass, in backward
  int64_t nan_at = -1;      // a step in which the last rank's loss is not finite
  int64_t signal_at = -1;   // a step in which the last rank is asked to stop
  std::chrono::seconds saving = std::chrono::seconds(0);  // that rank 0 takes longer to save

  // Returns the parameters after training.
  std::vector<Tensor> run(Group* group) const {
    torch::manual_seed(group == nullptr ? 3 : 3 + group->rank());
    TwoLayers net;
    const auto ranks = parallelize(net, parallel, group);
    const auto optimizer = make_optimizer(net, torch::optim::AdamWOptions(1e-2), parallel, *ranks);
    Job job{net, *optimizer,
            [&](int64_t step, int64_t micro_step) { return loss(net, *ranks, step, micro_step); }};
    job.parallel = ranks;
    if (saving.count() > 0 && ranks->rank() == 0)
      job.parallel = std::make_shared<SlowToSave>(ranks, saving);
    LoopOptions options;
    options.run_directory = directory;
    options.resume = resume;
    options.steps = steps;
    options.step.accumulation_steps = accumulation_steps;
    options.step.max_norm = 0.5;
    options.checkpointing_interval = checkpointing_interval;
    options.quiet = true;
    if (group == nullptr) {  // of several processes, in a directory of its own
      const RunDirectory own(directory, resume);
      flashstep::run(job, options, &own);
    } else {
      flashstep::run(job, options);
    }
    std::vector<Tensor> result;
    if (ranks->units() != nullptr) {
      const NamedTensors whole = ranks->units()->gather();
      const std::map<std::string, Tensor> by_name(whole.begin(), whole.end());
      for (const auto& item : net.named_parameters()) result.push_back(by_name.at(item.key()));
      return result;
    }
    for (const Tensor& parameter : net.parameters()) result.push_back(parameter.detach().clone());
    return result;
  }

  Tensor loss(TwoLayers& net, const Parallelism& ranks, int64_t step, int64_t micro_step) const {
    const bool is_last = ranks.rank() == ranks.world_size() - 1;
    if (step == signal_at && is_last && micro_step == 0) ::raise(SIGTERM);
    // The same rows whatever the number of ranks: a function of the step alone.
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 + 2 * step + micro_step);
    const Tensor x = at::randn({kRows, 6}, generator), y = at::randn({kRows, 3}, generator);
    const int64_t rows = kRows / ranks.world_size();
    const auto forward = [&net](const Tensor& input) { return net.forward(input); };
    const Tensor input = x.slice(0, ranks.rank() * rows, (ranks.rank() + 1) * rows);
    const Tensor own = recomputes ? recompute(forward, input) : forward(input);
    const Tensor loss =
        torch::mse_loss(own, y.slice(0, ranks.rank() * rows, (ranks.rank() + 1) * rows));
    return step == nan_at && is_last ? loss * NAN : loss;
  }
};

std::vector<double> losses(const fs::path& directory) {
  std::vector<double> result;
  std::ifstream in(directory / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("loss") && !json.at("loss").is_null()) result.push_back(json.at("loss"));
  }
  return result;
}

// One folder per test, the same one for all of its ranks.
fs::path folder(const std::string& name) {
  return fs::temp_directory_path() / str("flashstep_parallel_train_", ::getppid(), "_", name);
}

ParallelConfig config(const std::string& wrapper, const std::string& shards = "none") {
  ParallelConfig config;
  config.wrapper = wrapper;
  config.bucket_megabytes = 0.0003;
  config.shard_optimizer = shards;
  return config;
}

void expect_close(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                  double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = (actual[i] - expected[i]).abs().max().item<double>();
    EXPECT_TRUE(difference <= tolerance) << i << ": " << difference;
  }
}

// Removes what the ranks of a test leave behind, in rank 0 and at the end.
struct Cleared {
  fs::path path;
  const Group& group;
  Cleared(fs::path path, const Group& group) : path(std::move(path)), group(group) {
    if (group.is_first()) fs::remove_all(this->path);
    group.barrier();
  }
  ~Cleared() {
    if (group.is_first()) fs::remove_all(path);
  }
};

TEST(Ranks, LossCurveIsThatOfOneProcess) {
  for (const int world_size : {2, 4}) {
    testing::run_ranks(world_size, [](const Environment& environment) {
      Group group(environment);
      const Cleared base(folder("curve"), group);
      std::vector<Tensor> alone;
      if (group.is_first())
        alone = ParallelExperiment{base.path / "alone", config("none")}.run(nullptr);
      for (const char* wrapper : {"naive", "flat", "overlapped", "bucketed", "torch"}) {
        for (const char* shards : {"none", "whole", "flat", "full"}) {
          if (shards == std::string("full") && wrapper != std::string("bucketed")) continue;
          SCOPED_TRACE(str(wrapper, ", shards ", shards));
          const fs::path run = base.path / str(wrapper, shards);
          const auto together = ParallelExperiment{run, config(wrapper, shards)}.run(&group);
          const auto again = ParallelExperiment{run / "again", config(wrapper, shards)}.run(&group);
          expect_close(again, together, 0);  // repeated runs: bit for bit
          if (!group.is_first()) continue;
          // AdamW's first updates have the size of the learning rate, 1e-2, whatever the gradient's
          // size, so that rounding of tiny gradients shows: allow 1 % of one update.
          expect_close(together, alone, 1e-4);
          const auto own = losses(run), expected = losses(base.path / "alone");
          ASSERT_EQ(own.size(), expected.size());
          for (size_t i = 0; i < own.size(); ++i) EXPECT_NEAR(own[i], expected[i], 1e-5) << i;
        }
      }
    });
  }
}

// Stopped after 5 or 7 steps and taken up by another number of ranks, or by the same: bit for bit.
// What is computed again in backward is reduced while backward runs, as everything else.
TEST(Ranks, RecomputedForwardPassesTrainTheSame) {
  testing::run_ranks(2, [](const Environment& environment) {
    Group group(environment);
    const Cleared base(folder("recompute"), group);
    for (const char* wrapper : {"naive", "flat", "overlapped", "bucketed"}) {
      ParallelExperiment kept{base.path / wrapper / "kept", config(wrapper)};
      ParallelExperiment recomputed{base.path / wrapper / "recomputed", config(wrapper)};
      recomputed.recomputes = true;
      const auto expected = kept.run(&group), got = recomputed.run(&group);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(got[i].equal(expected[i])) << wrapper << ", " << i;
      }
    }
  });
}

TEST(Ranks, ResumedIsNeverStopped) {
  const auto run = [&](const std::string& shards, Group& group) {
    const Cleared base(folder("resume"), group);
    const auto whole =
        ParallelExperiment{base.path / "whole", config("bucketed", shards)}.run(&group);
    ParallelExperiment part{base.path / "part", config("bucketed", shards)};
    part.steps = 7;
    part.run(&group);
    part.steps = kSteps;
    part.resume = true;
    expect_close(part.run(&group), whole, 0);
    // On one process, with the rows of all ranks.
    ParallelExperiment first{base.path / "first", config("bucketed", shards)};
    first.steps = 7;
    first.run(&group);
    if (group.is_first()) {
      first.steps = kSteps;
      first.resume = true;
      expect_close(first.run(nullptr), whole, 1e-4);
    }
    group.barrier();
  };
  for (const int world_size : {2, 3}) {
    testing::run_ranks(world_size, [&](const Environment& environment) {
      Group group(environment);
      for (const char* shards : {"none", "whole", "flat", "full"}) {
        SCOPED_TRACE(shards);
        run(shards, group);
      }
    });
  }
}

// Written by 3 ranks in one way of dividing, taken up by 2 in another.
TEST(Ranks, AnotherNumberOfRanksAndAnotherDivisionGoOn) {
  const std::pair<const char*, const char*> cases[] = {
      {"flat", "flat"}, {"flat", "whole"}, {"whole", "flat"}, {"none", "flat"}, {"flat", "none"},
      {"full", "full"}, {"full", "none"},  {"none", "full"},  {"flat", "full"}, {"full", "flat"}};
  for (const auto& [before, after] : cases) {
    const auto part = [](const char* shards) {
      ParallelExperiment experiment{folder("reshard") / "part", config("bucketed", shards)};
      experiment.steps = 7;
      return experiment;
    };
    testing::run_ranks(3, [&](const Environment& environment) {
      Group group(environment);
      if (group.is_first()) fs::remove_all(folder("reshard"));
      group.barrier();
      part(before).run(&group);
      const std::string name = "optimizer.00002-of-00003.safetensors";
      const fs::path file = folder("reshard") / "part/checkpoints/step_00000007" / name;
      // Rank 0 gives the checkpoint its name when all have written.
      const bool expected = group.is_first() && before != std::string("none");
      EXPECT_EQ(group.is_first() && fs::exists(file), expected) << file;
    });
    testing::run_ranks(2, [&](const Environment& environment) {
      Group group(environment);
      ParallelExperiment second = part(after);
      second.steps = kSteps;
      second.resume = true;
      const auto resumed = second.run(&group);
      const auto whole =
          ParallelExperiment{folder("reshard") / "whole", config("bucketed")}.run(&group);
      expect_close(resumed, whole, 1e-4);
      group.barrier();
      if (group.is_first()) fs::remove_all(folder("reshard"));
    });
  }
}

// One rank is killed while checkpoints are written one after the other: those that have their name
// are whole, and the run goes on from the newest.
TEST(Ranks, AnyRankKilledWhileSaving) {
  const fs::path directory =
      fs::temp_directory_path() / str("flashstep_parallel_train_kill_", ::getpid());
  for (int trial = 0; trial < 6; ++trial) {
    const auto body = [](const Environment& environment) {
      Group group(environment);
      const fs::path here =
          fs::temp_directory_path() / str("flashstep_parallel_train_kill_", ::getppid());
      ParallelExperiment experiment{here, config("bucketed", "flat")};
      experiment.steps = 100000;
      experiment.checkpointing_interval = 1;
      experiment.resume = true;
      experiment.run(&group);
    };
    // Only the starting process comes here.
    testing::start_ranks(3, body, [&](testing::Ranks& ranks) {
      const auto newest = [&] {
        const auto steps = list_checkpoints(directory / "checkpoints");
        return steps.empty() ? int64_t{-1} : steps.back();
      };
      const int64_t before = newest();
      const auto start = std::chrono::steady_clock::now();
      while (newest() <= before + 1 && !ranks.has_ended(0) &&
             std::chrono::steady_clock::now() - start < std::chrono::seconds(60)) {
        ranks.wait_for_end(0, 0.01);
      }
      ranks.wait_for_end(0, 0.003 * trial);  // s: another place in what is going on
      ranks.signal(trial % 3, SIGKILL);
      EXPECT_TRUE(ranks.wait_for_all(60)) << ranks.all_output();
      int warnings = 0;
      const auto checkpoint =
          load_newest(directory / "checkpoints", [&](const std::string&) { ++warnings; });
      EXPECT_EQ(warnings, 0);
      ASSERT_TRUE(checkpoint.has_value()) << ranks.all_output();
      EXPECT_GT(checkpoint->step, before) << ranks.all_output();
    });
  }
  fs::remove_all(directory);
}

// Rank 0 takes longer to write the checkpoint than ranks give one that is lost; the others must not
// be lost to it meanwhile.
TEST(Ranks, ASignalEndsNoRankThatStillSaves) {
  testing::run_ranks(2, [](const Environment& environment) {
    ParallelExperiment experiment{folder("signal"), config("bucketed")};
    experiment.checkpointing_interval = 0;
    experiment.signal_at = 3;
    experiment.saving = std::chrono::seconds(5);
    if (environment.rank == 0) fs::remove_all(experiment.directory);
    GroupOptions options;
    options.timeouts.grace = std::chrono::seconds(1);
    options.on_stuck = end_process;
    int signal = 0;
    try {
      Group group(environment, options);  // ends by the exception, as the program's does
      experiment.run(&group);
    } catch (const Interrupted& interrupted) {
      signal = interrupted.signal();
    }
    EXPECT_EQ(signal, SIGTERM);
    if (environment.rank == 0) {
      const std::vector<int64_t> saved = {4};
      EXPECT_EQ(list_checkpoints(experiment.directory / "checkpoints"), saved);
      fs::remove_all(experiment.directory);
    }
  });
}

TEST(Ranks, DifferentNumbersOfStepsAreRefusedByName) {
  testing::run_ranks(2, [](const Environment& environment) {
    Group group(environment);
    const Cleared base(folder("steps"), group);
    ParallelExperiment experiment{base.path / "run", config("bucketed")};
    experiment.steps = kSteps + group.rank();
    EXPECT_THROW(experiment.run(&group), UserError);
  });
}

TEST(Ranks, AStepThatIsNotFiniteOnOneRankIsSkippedOnAll) {
  testing::run_ranks(2, [](const Environment& environment) {
    Group group(environment);
    const Cleared base(folder("skip"), group);
    for (const char* shards : {"none", "whole", "flat", "full"}) {
      ParallelExperiment experiment{base.path / shards, config("bucketed", shards)};
      experiment.nan_at = 4;
      const auto parameters = experiment.run(&group);
      for (const Tensor& p : parameters) EXPECT_TRUE(p.isfinite().all().item<bool>());
      const auto sums = group.all_gather(parameters.front().sum().item<double>());
      EXPECT_EQ(sums.front(), sums.back());
    }
  });
}

TEST(Parallelize, RefusesWhatDoesNotGoTogether) {
  TwoLayers net;
  ParallelConfig four = config("bucketed");
  four.world_size = 4;
  EXPECT_THROW(parallelize(net, four, nullptr), UserError);
  testing::run_ranks(2, [](const Environment& environment) {
    Group group(environment);
    TwoLayers net;
    EXPECT_THROW(parallelize(net, config("none"), &group), UserError);
    EXPECT_THROW(parallelize(net, config("naive", "full"), &group), UserError);
    ParallelConfig thirds = config("bucketed", "full");
    thirds.shard_ranks = 3;
    testing::expect_sentence([&] { parallelize(net, thirds, &group); },
                             {"parallel.shard_ranks that divides", "2, got 3"});
  });
}

}  // namespace
}  // namespace flashstep
