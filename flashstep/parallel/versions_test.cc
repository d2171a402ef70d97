// Whoever keeps what was computed from a parameter, its values in another dtype say, sees by its
// version that it is old, also where the parameter was written past autograd.
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/data_parallel.h"
#include "flashstep/parallel/test_cases.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::same_bits;
using testing::TiedToy;
using torch::Tensor;

void expect_versions_to_grow(const Group& group, ShardMode mode, bool divides) {
  torch::manual_seed(21);
  DistributedDataParallel<TiedToy> net(std::make_shared<TiedToy>(), group);
  ShardOptions shards{.mode = mode, .part_megabytes = 0.0005};
  if (divides) shards.reducer = &net.reducer();
  const auto& parameters = net.reducer().reduced_parameters();
  ShardedOptimizer<torch::optim::SGD> optimizer(parameters, torch::optim::SGDOptions(0.1), group,
                                                shards);
  for (int step = 0; step < 2; ++step) {
    std::vector<uint32_t> before;
    std::vector<Tensor> values;
    for (const Tensor& parameter : parameters) {
      before.push_back(parameter._version());
      values.push_back(parameter.detach().clone());
    }
    optimizer.zero_grad();
    net.forward(torch::ones({2, 10})).square().mean().backward();
    net.finish_gradient_synchronization();
    optimizer.step();
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_GT(parameters[i]._version(), before[i]) << "parameter " << i << ", step " << step;
      EXPECT_FALSE(same_bits(parameters[i].detach(), values[i])) << i;
    }
  }
}

TEST(VersionRanks, GrowWithEveryUpdate) {
  const auto run = [](const Group& group) {
    expect_versions_to_grow(group, ShardMode::kWhole, /*divides=*/false);
    expect_versions_to_grow(group, ShardMode::kFlat, /*divides=*/false);
    expect_versions_to_grow(group, ShardMode::kFlat, /*divides=*/true);
  };
  run(Group(Environment()));
  on_ranks(3, run);
}

TEST(VersionRanks, GrowWithWhatTheFirstRankSends) {
  on_ranks(2, [](const Group& group) {
    const Tensor parameter = torch::full({3}, 1.0 * group.rank()).requires_grad_();
    const Tensor other = torch::full({3}, 1.0 * group.rank());
    const auto before = parameter._version(), before_other = other._version();
    broadcast_from_first({parameter}, group);
    group.broadcast(other, 0);
    EXPECT_TRUE(same_bits(parameter.detach(), torch::zeros({3})));
    EXPECT_TRUE(same_bits(other, torch::zeros({3})));
    if (group.is_first()) return;
    EXPECT_GT(parameter._version(), before);
    EXPECT_GT(other._version(), before_other);
  });
}

}  // namespace
}  // namespace flashstep
