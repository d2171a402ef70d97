// Fully sharded modules of which there are several copies: divided within some ranks, averaged
// between all.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include "flashstep/fully_sharded.h"
#include "flashstep/parallel/test_hard_net.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

using testing::close;
using testing::expect_sentence;
using testing::run_ranks;
using testing::same_bits;
using torch::Tensor;

constexpr int kReplicaRanks = 4;

// Ranks at the same place in their replica have the same bits, and all of what is not divided.
void expect_equal_replicas(const torch::nn::Module& module, const Group& group, int shard_ranks) {
  for (const auto& item : module.named_parameters()) {
    const Tensor own = item.value().detach().flatten().contiguous();
    const std::string bytes(static_cast<const char*>(own.const_data_ptr()), own.nbytes());
    const std::vector<std::string> all = group.all_gather(bytes);
    const int divided_by = item.value().dim() == 1 ? 1 : shard_ranks;
    for (int rank = divided_by; rank < group.world_size(); ++rank)
      EXPECT_EQ(all[rank], all[rank % divided_by]) << item.key() << " on rank " << rank;
  }
}

TEST(Replicas, TrainAsASingleProcessDoes) {
  constexpr int64_t kSteps = 20;
  run_ranks(kReplicaRanks, [](const Environment& environment) {
    const Group group(environment);
    const auto alone = train_alone(*make_hard_net(), kSteps);
    for (const int shard_ranks : {1, 2}) {
      for (ShardCase c : shard_cases()) {
        SCOPED_TRACE(str(c.name, ", replicas of ", shard_ranks));
        c.options.shard_ranks = shard_ranks;
        const auto net = make_hard_net();
        net->recomputed = c.recomputed;
        FullyShardedDataParallel model(net, group, c.options);
        if (!c.options.shard && shard_ranks == 2) {
          // 55 elements in parts of 28.
          EXPECT_EQ(net->words.numel(), group.rank() % 2 == 0 ? 28 : 27);
        }
        torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
        train_sharded(model, optimizer, kSteps);
        for (const auto& [name, tensor] : model.gather_full_parameters())
          EXPECT_TRUE(close(tensor, alone.at(name), 2e-5, 1e-4)) << name;
        expect_equal_replicas(*net, group, shard_ranks);
      }
    }
  });
}

// Its gradients are small whole numbers, of which sums are exact in float32 in any order, and in
// bfloat16 are not.
struct Counting : torch::nn::Module {
  struct Layer : torch::nn::Module {
    Tensor weight = register_parameter("weight", torch::ones({7, 5}));
    Tensor gain = register_parameter("gain", torch::ones({5}));
    Tensor fixed = register_parameter("fixed", torch::ones({5, 3}), /*requires_grad=*/false);
    Tensor forward(const Tensor& x) const {  // (7, 5)
      return ((weight + gain) * x).sum() + fixed.sum();
    }
  };
  torch::nn::ModuleList layers{register_module("layers", torch::nn::ModuleList())};
  Counting() {
    for (int i = 0; i < 4; ++i) layers->push_back(std::make_shared<Layer>());
  }
  Tensor forward(const Tensor& x) {
    Tensor y = torch::zeros({}, x.options());
    for (const auto& layer : *layers) y = y + run(*layer->as<Layer>(), x);
    return y;
  }
};
Tensor numbers(int rank, int64_t backward) {
  return torch::arange(35).mul(17).add(rank * 29 + backward * 13).remainder(128).view({7, 5});
}

// Of `backwards`, added up.
NamedTensors gradients_of(const Group& group, int shard_ranks, at::ScalarType dtype,
                          int64_t backwards) {
  const auto net = std::make_shared<Counting>();
  FullyShardedDataParallel model(net, group, {.compute_dtype = dtype, .shard_ranks = shard_ranks});
  for (int64_t i = 0; i < backwards; ++i) model(numbers(group.rank(), i).to(dtype)).backward();
  double squares = 0;
  {
    const torch::NoGradGuard no_grad;  // as weights, which can be gathered
    const double norm = model.units().gradient_norm().item<double>();
    for (const Tensor& parameter : model.parameters()) {
      EXPECT_EQ(parameter.grad().defined(), parameter.requires_grad());
      if (parameter.requires_grad()) parameter.copy_(parameter.grad());
    }
    NamedTensors result = model.gather_full_parameters();
    for (const auto& [name, tensor] : result)
      if (!name.ends_with("fixed")) squares += tensor.square().sum().item<double>();
    EXPECT_NEAR(norm, std::sqrt(squares), 1e-6 * norm) << "each shard counts once";
    return result;
  }
}

TEST(Replicas, GradientsHaveTheBitsOfOneCopy) {
  run_ranks(kReplicaRanks, [](const Environment& environment) {
    const Group group(environment);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t backwards : {1, 3}) {
        const NamedTensors expected = gradients_of(group, 0, dtype, backwards);
        Tensor sum = torch::zeros({7, 5});
        for (int rank = 0; rank < kReplicaRanks; ++rank) {
          for (int64_t i = 0; i < backwards; ++i) sum += numbers(rank, i);
        }
        EXPECT_TRUE(same_bits(expected[0].second, sum / kReplicaRanks)) << "the test's own formula";
        for (const int shard_ranks : {1, 2, 4}) {
          const NamedTensors actual = gradients_of(group, shard_ranks, dtype, backwards);
          ASSERT_EQ(actual.size(), expected.size());
          for (size_t i = 0; i < actual.size(); ++i) {
            EXPECT_TRUE(same_bits(actual[i].second, expected[i].second))
                << actual[i].first << ", replicas of " << shard_ranks << ", " << dtype;
          }
        }
      }
    }
  });
}

TEST(Replicas, EveryElementIsFirstOnOneRank) {
  run_ranks(kReplicaRanks, [](const Environment& environment) {
    const Group group(environment);
    FullyShardedDataParallel model(make_hard_net(), group, {.shard_ranks = 2});
    std::vector<int64_t> first, all;
    for (const Shard& shard : model.units().shards()) {
      first.push_back(shard.is_first ? shard.end - shard.begin : 0);
      all.push_back(shard.whole.numel());
    }
    EXPECT_EQ(group.all_reduce(first, Reduce::kSum), all);
    // Each whole tensor has one owner, in the first replica.
    const NamedTensors own = model.units().gather_evenly();
    EXPECT_EQ(own.empty(), group.rank() >= 2);
    EXPECT_EQ(group.all_reduce(own.size(), Reduce::kSum), static_cast<int64_t>(all.size()));
    const size_t given = model.gather_full_parameters(/*to=*/3).size();
    EXPECT_EQ(given, group.rank() == 3 ? all.size() : 0);
  });
}

TEST(Replicas, AreWhole) {
  run_ranks(kReplicaRanks, [](const Environment& environment) {
    const Group group(environment);
    const auto expect_refused = [&](int shard_ranks, const std::vector<std::string>& words) {
      const auto net = make_hard_net();
      expect_sentence([&] { FullyShardedDataParallel(net, group, {.shard_ranks = shard_ranks}); },
                      words);
    };
    expect_refused(3, {"shard_ranks that divides the 4 ranks", "got 3"});
    expect_refused(-2, {"shard_ranks that divides", "got -2"});
    expect_refused(group.rank() == 2 ? 2 : 0,
                   {"shard_ranks 0 on rank 0", "shard_ranks 2 on rank 2"});
  });
}

}  // namespace
}  // namespace flashstep
