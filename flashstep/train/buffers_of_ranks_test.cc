// Running statistics of several ranks: resumed to the bit, as parameters are.
#include <filesystem>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

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

// The parameters and buffers after `steps` in all.
std::vector<torch::Tensor> train(const Group& group, const fs::path& directory, int64_t steps,
                                 bool sharded) {
  torch::manual_seed(3);
  Normalized net;
  const auto ranks = sharded ? full_sharding(net, group) : data_parallelism(net, group);
  AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(0.1));
  Job job{net, optimizer, [&](int64_t step, int64_t) {
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
  run(job, options);
  std::vector<torch::Tensor> state;
  for (const torch::Tensor& buffer : net.buffers()) state.push_back(buffer.clone());
  return state;
}

void expect_resumed(bool sharded) {
  testing::run_ranks(2, [&](const Environment& environment) {
    const Group group(environment);
    const fs::path own =
        fs::temp_directory_path() / str("flashstep_buffers_", ::getppid(), sharded ? "_s" : "_d");
    const auto straight = train(group, own / "straight", 6, sharded);
    train(group, own / "resumed", 3, sharded);
    const auto resumed = train(group, own / "resumed", 6, sharded);
    ASSERT_EQ(straight.size(), 3u);
    for (size_t i = 0; i < straight.size(); ++i)
      EXPECT_TRUE(torch::equal(straight[i], resumed[i])) << straight[i] << resumed[i];
    group.all_gather(1.0);
    if (group.is_first()) fs::remove_all(own);
  });
}

TEST(BuffersOfRanks, ResumeToTheBitWithDataParallelism) { expect_resumed(/*sharded=*/false); }
TEST(BuffersOfRanks, ResumeToTheBitWithFullSharding) { expect_resumed(/*sharded=*/true); }

}  // namespace
}  // namespace flashstep
