// What each of several ranks has for itself, running statistics and random generators: resumed to
// the bit, as parameters are.
#include <csignal>
#include <filesystem>
#include <memory>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "flashstep/checkpoint.h"
#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/loop.h"
#include "flashstep/optim.h"
#include "flashstep/testing/ranks.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

struct Normalized : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(4, 8))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(8))};
  torch::Tensor forward(const torch::Tensor& x) { return norm(in(x)); }
};

// What forward reads and every rank has for itself: the mean of its inputs so far.
struct Centered : Normalized {
  torch::Tensor mean = register_buffer("mean", torch::zeros({4}));
  torch::Tensor forward(const torch::Tensor& x) {
    mean.mul_(0.9).add_(x.mean(0), 0.1);
    return Normalized::forward(x - mean);
  }
};

std::vector<torch::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& t : module.parameters()) all.push_back(t.detach().clone());
  for (const torch::Tensor& t : module.buffers()) all.push_back(t.clone());
  return all;
}

void expect_same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << a[i] << b[i];
}

// The parameters and buffers after `steps` in all; a signal comes while step `stop_in` is taken.
std::vector<torch::Tensor> train(const Group& group, const fs::path& directory, int64_t steps,
                                 bool sharded, int64_t stop_in = -1) {
  torch::manual_seed(3);
  Centered net;
  const auto ranks = sharded ? full_sharding(net, group) : data_parallelism(net, group);
  AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(0.1));
  Job job{net, optimizer, [&](int64_t step, int64_t) {
            if (step == stop_in) ::raise(SIGTERM);
            torch::manual_seed(10 * step + group.rank());
            const torch::Tensor x = torch::randn({6, 4}) + group.rank();
            return ranks->call([&] { return torch::mse_loss(net.forward(x), x.repeat({1, 2})); });
          }};
  job.parallel = ranks;
  LoopOptions options;
  options.run_directory = directory;
  options.resume = true;
  options.steps = steps;
  options.checkpointing_interval = 3;
  options.quiet = true;
  try {
    run(job, options);
  } catch (const Interrupted&) {
    EXPECT_GE(stop_in, 0);
  }
  return tensors_of(net);
}

void expect_resumed(bool sharded) {
  testing::run_ranks(2, [&](const Environment& environment) {
    const Group group(environment);
    const fs::path own =
        fs::temp_directory_path() / str("flashstep_buffers_", ::getppid(), sharded ? "_s" : "_d");
    const auto straight = train(group, own / "straight", 6, sharded);
    train(group, own / "planned", 3, sharded);
    expect_same(train(group, own / "planned", 6, sharded), straight);
    train(group, own / "between", 6, sharded, /*stop_in=*/3);  // a checkpoint that nobody planned
    expect_same(train(group, own / "between", 6, sharded), straight);
    group.all_gather(1.0);
    if (group.is_first()) fs::remove_all(own);
  });
}

TEST(BuffersOfRanks, ResumeToTheBitWithDataParallelism) { expect_resumed(/*sharded=*/false); }
TEST(BuffersOfRanks, ResumeToTheBitWithFullSharding) { expect_resumed(/*sharded=*/true); }

void step_alone(DistributedDataParallel<Centered>& model, torch::optim::Optimizer& optimizer,
                int64_t seed) {
  torch::manual_seed(seed);
  (model(torch::randn({6, 4}) + static_cast<double>(seed % 10)).pow(2) * torch::arange(8))
      .mean()
      .backward();
  optimizer.step();
  optimizer.zero_grad();
}

// A loop of one's own; saving changes nothing of what it goes on with.
TEST(BuffersOfRanks, AreSavedAsEachRankHasThem) {
  const fs::path own = fs::temp_directory_path() / str("flashstep_buffers_", ::getpid(), "_own");
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const fs::path own = fs::temp_directory_path() / str("flashstep_buffers_", ::getppid(), "_own");
    std::vector<torch::Tensor> straight, at_save;
    for (const bool resumes : {false, true}) {
      torch::manual_seed(3);
      DistributedDataParallel model(std::make_shared<Centered>(), group);
      AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.1));
      const int64_t begin = resumes ? load_if_exists(own, model, optimizer) : 0;
      EXPECT_EQ(begin, resumes ? 3 : 0);
      if (resumes) expect_same(tensors_of(*model.module()), at_save);
      for (int64_t step = begin; step < 6; ++step) {
        step_alone(model, optimizer, 10 * step + group.rank());
        if (resumes || step != 2) continue;
        at_save = tensors_of(*model.module());
        save(own, model, optimizer, 3);
        expect_same(tensors_of(*model.module()), at_save);
      }
      if (resumes) expect_same(tensors_of(*model.module()), straight);
      straight = tensors_of(*model.module());
    }
    const auto means = group.all_gather(straight.at(4).sum().item<double>());
    EXPECT_NE(means[0], means[1]);  // they do differ
  });
  Centered net;  // on another number of ranks they are rank 0's
  AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(0.1));
  EXPECT_EQ(load_if_exists(own, net, optimizer), 3);
  const SafetensorsFile saved(checkpoint_directory(own, 3) / "model.safetensors");
  EXPECT_TRUE(torch::equal(net.mean, saved.tensor("mean")));
  fs::remove_all(own);
}

// What each rank draws after one step and a save by `saving` ranks, and a load by `loading` ones.
// Rank r is seeded with 100 + r times `apart`, before the load with 200 + r times `apart`. Rank r
// of the loading ones draws what rank of_saved[r] of the saving ones did; -1: as it was seeded.
void expect_draws(int saving, int loading, int apart, const std::vector<int>& of_saved) {
  const bool is_rank = testing::internal::call_of_rank() >= 0;
  const fs::path own =
      fs::temp_directory_path() / str("flashstep_draws_", is_rank ? ::getppid() : ::getpid());
  for (const bool loads : {false, true}) {
    testing::run_ranks(loads ? loading : saving, [&](const Environment& environment) {
      const Group group(environment);
      torch::manual_seed(3);
      DistributedDataParallel model(std::make_shared<Normalized>(), group);
      AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.1));
      torch::manual_seed((loads ? 200 : 100) + group.rank() * apart);
      if (loads) {
        EXPECT_EQ(load_if_exists(own / "checkpoints", model, optimizer), 1);
      } else {
        model(torch::randn({6, 4})).mean().backward();
        optimizer.step();
        save(own / "checkpoints", model, optimizer, 1);
      }
      const auto draws = group.all_gather(torch::rand({1}, torch::kDouble).item<double>());
      if (group.is_first()) {
        write_safetensors(own / (loads ? "loaded" : "saved"),
                          {{"draws", torch::tensor(draws, torch::kDouble)}});
      }
    });
  }
  if (is_rank) return;
  const torch::Tensor saved = SafetensorsFile(own / "saved").tensor("draws"),
                      loaded = SafetensorsFile(own / "loaded").tensor("draws");
  for (int rank = 0; rank < loading; ++rank) {
    const int of = of_saved[rank];
    torch::manual_seed(200 + rank * apart);
    EXPECT_EQ(loaded[rank].item<double>(),
              (of >= 0 ? saved[of] : torch::rand({1}, torch::kDouble)).item<double>())
        << saving << " to " << loading << ": " << rank;
  }
  fs::remove_all(own);
}

TEST(GeneratorsOfRanks, GoOnOnAnyNumberOfRanks) {
  expect_draws(2, 2, /*apart=*/1, {0, 1});
  expect_draws(3, 2, 1, {0, 1});
  expect_draws(2, 3, 1, {0, 1, -1});  // as it was seeded
  expect_draws(1, 2, 1, {0, -1});
  expect_draws(2, 3, /*apart=*/0, {0, 1, 0});  // drew alike
}

// The loop's checkpoints of one rank with a group.
TEST(GeneratorsOfRanks, OfOneRankAreNotCopied) {
  for (const int ranks : {1, 2}) {
    testing::run_ranks(ranks, [](const Environment& environment) {
      const Group group(environment);
      const fs::path own = fs::temp_directory_path() / str("flashstep_one_draws_", ::getppid());
      torch::manual_seed(3);
      Normalized net;
      const auto parallel = data_parallelism(net, group);
      AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(0.1));
      torch::manual_seed(100 + group.rank());
      double drawn = 0;
      Job job{net, optimizer, [&](int64_t, int64_t) {
                drawn = torch::rand({1}, torch::kDouble).item<double>();
                return parallel->call([&] { return net.forward(torch::ones({6, 4})).mean(); });
              }};
      job.parallel = parallel;
      LoopOptions options;
      options.run_directory = own;
      options.resume = true;
      options.steps = group.world_size();
      options.quiet = true;
      run(job, options);
      const auto all = group.all_gather(drawn);
      if (group.world_size() == 1) return;
      EXPECT_NE(all[0], all[1]);
      if (group.is_first()) fs::remove_all(own);
    });
  }
}

}  // namespace
}  // namespace flashstep
