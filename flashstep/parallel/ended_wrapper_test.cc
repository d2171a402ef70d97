// What is left of a module when its wrapper has ended: of a fully sharded one shards, which nobody
// takes for whole parameters.
#include <memory>
#include <optional>

#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "flashstep/data_parallel.h"
#include "flashstep/fully_sharded.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

using testing::expect_sentence;
using testing::run_ranks;
using torch::Tensor;
using torch::nn::Linear;

// 25 and 15 weights: no two ranks, nor three, have as many.
struct EndedNet : torch::nn::Module {
  torch::nn::ModuleList blocks{register_module("blocks", torch::nn::ModuleList(Linear(5, 5)))};
  Linear head{register_module("head", Linear(5, 3))};
  Tensor forward(const Tensor& x) { return head(run(*blocks[0]->as<Linear>(), x)); }
};

using Wrapper = FullyShardedDataParallel<EndedNet>;

void expect_shards(const EndedNet& net) {
  for (const Tensor& parameter : net.parameters()) {
    EXPECT_TRUE(parameter.dim() == 1 || parameter.sizes().slice(1).equals({1, 1}))
        << parameter.sizes();
    EXPECT_FALSE(parameter.grad().defined());
  }
}

TEST(EndedWrapper, ABackwardAfterItIsRefused) {
  for (const int world_size : {1, 2}) {
    run_ranks(world_size, [](const Environment& environment) {
      const Group group(environment);
      for (const bool reshard : {true, false}) {
        SCOPED_TRACE(reshard);
        const auto net = std::make_shared<EndedNet>();
        std::optional<Wrapper> model(std::in_place, net, group,
                                     FullyShardOptions{.reshard_after_forward = reshard});
        const Tensor loss = (*model)(torch::ones({2, 5})).sum();
        model.reset();
        expect_shards(*net);
        expect_sentence([&] { loss.backward(); },
                        {"expected", "to live until the backward", "after its end"});
        expect_shards(*net);
      }
    });
  }
}

TEST(EndedWrapper, ABackwardAfterDataParallelIsRefused) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = std::make_shared<EndedNet>();
    const auto loss = [&] {
      return DistributedDataParallel(net, group)(torch::ones({2, 5})).sum();
    }();
    expect_sentence([&] { loss.backward(); },
                    {"[DistributedDataParallel]", "to live until the backward", "rank's alone"});
    // Nothing would have been averaged.
    const auto local = [&] {
      DistributedDataParallel model(net, group);
      const auto no_sync = model.no_sync();
      return model(torch::ones({2, 5})).sum();
    }();
    local.backward();
    EXPECT_TRUE(net->head->bias.grad().defined());
    const Tensor x = torch::ones({2, 5}).requires_grad_();
    const auto of_input = [&] { return DistributedDataParallel(net, group)(x).sum(); }();
    EXPECT_TRUE(torch::autograd::grad({of_input}, {x})[0].defined());
  });
}

// In the middle of a backward, which an exception ends.
TEST(EndedWrapper, ABrokenBackwardLeavesShards) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = std::make_shared<EndedNet>();
    std::optional<Wrapper> model(std::in_place, net, group);
    net->head->bias.register_hook([](const Tensor&) { throw UserError("in the middle"); });
    EXPECT_ANY_THROW((*model)(torch::ones({2, 5})).sum().backward());
    model.reset();
    expect_shards(*net);
  });
}

TEST(EndedWrapper, ItsShardsAreNotTakenForParameters) {
  for (const int world_size : {1, 2, 3}) {
    run_ranks(world_size, [](const Environment& environment) {
      const Group group(environment);
      const auto net = std::make_shared<EndedNet>();
      NamedTensors whole;
      {
        const Wrapper model(net, group);
        whole = model.gather_full_parameters();
      }
      expect_sentence([&] { DistributedDataParallel(net, group); },
                      {"blocks.0.weight, a shard that"});
      expect_sentence([&] { GradientReducer(net->parameters(), group); }, {"parameter 0, a shard"});
      expect_sentence([&] { Wrapper(net, group); }, {"blocks.0.weight, a shard that"});
      using Sharded = ShardedOptimizer<torch::optim::SGD>;
      expect_sentence([&] { Sharded(net->parameters(), torch::optim::SGDOptions(0.1), group); },
                      {"parameter 0, a shard"});
      // Whole again, they are parameters as any others.
      auto parameters = net->named_parameters();
      for (const auto& [name, tensor] : whole) parameters[name].set_data(tensor);
      DistributedDataParallel again(net, group);
      again(torch::ones({2, 5})).sum().backward();
      EXPECT_EQ(net->head->weight.grad().sizes(), net->head->weight.sizes());
    });
  }
}

// Each knows the parameters whole, and would send shards over each other's.
TEST(EndedWrapper, WhoHoldsWholeParametersRefusesShards) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = std::make_shared<EndedNet>();
    for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
      ShardOptions options;
      options.mode = mode;
      const auto other = std::make_shared<EndedNet>();
      ShardedOptimizer<torch::optim::SGD> early(other->parameters(), torch::optim::SGDOptions(0.1),
                                                group, options);
      Wrapper model(other, group);
      model(torch::ones({2, 5})).sum().backward();
      expect_sentence([&] { early.step(); }, {"expected parameters that every rank has whole"});
    }
    DistributedDataParallel averaged(net, group);
    Wrapper sharded(net, group);
    expect_sentence(
        [&] {
          sharded(torch::ones({2, 5})).sum().backward();
        },
        {"averaged by one reducer", "FullyShardedDataParallel"});
  });
}

}  // namespace
}  // namespace flashstep
