// Sharded optimizers of ranks that differ, over shards, and of gradients that nobody has averaged:
// sentences on all ranks.
#include <memory>

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "flashstep/data_parallel.h"
#include "flashstep/fully_sharded.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::expect_sentence;
using testing::PlainToy;
using testing::run_ranks;
using torch::Tensor;
using torch::optim::AdamWOptions;

using Sharded = ShardedOptimizer<torch::optim::AdamW>;

TEST(ShardedOptimizerRefusals, RanksThatDifferAreNamed) {
  run_ranks(3, [](const Environment& environment) {
    const Group group(environment);
    torch::manual_seed(5);
    const auto toy = std::make_shared<PlainToy>();
    const std::vector<Tensor> all = toy->parameters(), fewer = toy->fc1->parameters();
    const bool differs = group.rank() == 2;
    const auto expect = [&](const std::vector<Tensor>& parameters, const AdamWOptions& options,
                            const ShardOptions& shards, const std::vector<std::string>& words) {
      expect_sentence([&] { Sharded(parameters, options, group, shards); }, words);
    };
    expect(all, AdamWOptions(1e-2), {.mode = differs ? ShardMode::kFlat : ShardMode::kWhole},
           {"[ShardedOptimizer]", "mode whole on rank 0", "mode flat on rank 2"});
    expect(differs ? fewer : all, AdamWOptions(1e-2), {},
           {"5 parameters", "on rank 0", "1 parameters", "on rank 2"});
    expect(all, AdamWOptions(differs ? 0.5 : 0.25), {},
           {"learning rate 0.25", "of parameter group 0 on rank 0", "learning rate 0.5"});
    expect(all, AdamWOptions(1e-2).weight_decay(differs ? 0.5 : 0.25), {},
           {"options", "of parameter group 0 on rank 0"});
    expect({differs ? torch::ones({3}) : torch::ones({4})}, AdamWOptions(1e-2), {},
           {"parameter 0 of shape [4]", "parameter 0 of shape [3]"});
    Sharded(all, AdamWOptions(1e-2), group).step();
  });
}

TEST(ShardedOptimizerRefusals, ShardsAreDividedAlready) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    FullyShardedDataParallel model(std::make_shared<PlainToy>(), group);
    for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
      expect_sentence(
          [&] { Sharded(model.parameters(), AdamWOptions(1e-2), group, {.mode = mode}); },
          {"[ShardedOptimizer]", "shards of a fully sharded module"});
    }
    expect_sentence([&] { GradientReducer(model.parameters(), group); },
                    {"[parallel]", "shards of a fully sharded module"});
  });
}

TEST(ShardedOptimizerRefusals, AStepOfGradientsThatNobodyHasAveraged) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    for (const Strategy strategy : {Strategy::kBucketed, Strategy::kNaive}) {
      for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
        torch::manual_seed(5);
        DistributedDataParallel model(std::make_shared<PlainToy>(), group, {.strategy = strategy});
        Sharded optimizer(model, AdamWOptions(1e-2), {.mode = mode});
        const auto backward = [&] { model(torch::ones({2, 10})).sum().backward(); };
        for (int step = 0; step < 3; ++step) {
          SCOPED_TRACE(str(strategy_name(strategy), ", ", static_cast<int>(mode), ", ", step));
          optimizer.zero_grad();
          {
            const auto no_sync = model.no_sync();
            backward();
          }
          const Tensor before = model.module()->fc1->weight.detach().clone();
          expect_sentence([&] { optimizer.step(); }, {"[ShardedOptimizer]", "no_sync"});
          EXPECT_TRUE(model.module()->fc1->weight.equal(before));
          if (step == 1) {  // given up: there is nothing to average
            optimizer.zero_grad();
            optimizer.step();
            continue;
          }
          backward();
          optimizer.step();
          EXPECT_FALSE(model.module()->fc1->weight.equal(before));
        }
      }
    }
  });
}

TEST(ShardedOptimizerRefusals, AStepOfGradientsThatCamePastTheWrapper) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    for (const Strategy strategy : {Strategy::kBucketed, Strategy::kNaive}) {
      for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
        torch::manual_seed(5);
        DistributedDataParallel model(std::make_shared<PlainToy>(), group, {.strategy = strategy});
        Sharded optimizer(model, AdamWOptions(1e-2), {.mode = mode});
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          const Tensor before = model.module()->fc1->weight.detach().clone();
          model.module()->forward(torch::ones({2, 10})).sum().backward();
          expect_sentence([&] { optimizer.step(); },
                          {"[ShardedOptimizer]", "finish_gradient_synchronization()"});
          EXPECT_TRUE(model.module()->fc1->weight.equal(before));
          model.finish_gradient_synchronization();
          optimizer.step();
          EXPECT_FALSE(model.module()->fc1->weight.equal(before));
        }
      }
    }
  });
}

TEST(ShardedOptimizerRefusals, AStepOfGradientsThatWereRefused) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
      torch::manual_seed(5);
      PlainToy toy;
      GradientReducer reducer(toy.parameters(), group);
      Sharded optimizer(toy.parameters(), AdamWOptions(1e-2), group,
                        {.mode = mode, .reducer = &reducer});
      const auto backward = [&](bool of_all) {
        (of_all ? toy.forward(torch::ones({2, 10})) : toy.fc1->weight).sum().backward();
      };
      const Tensor before = toy.fc1->weight.detach().clone();
      backward(/*of_all=*/group.is_first());
      expect_sentence([&] { reducer.finish_gradient_synchronization(); }, {"[parallel]"});
      expect_sentence([&] { optimizer.step(); }, {"[ShardedOptimizer]", "this rank's own"});
      EXPECT_TRUE(toy.fc1->weight.equal(before));
      optimizer.zero_grad();
      backward(/*of_all=*/true);
      reducer.finish_gradient_synchronization();
      optimizer.step();
      EXPECT_FALSE(toy.fc1->weight.equal(before));
    }
  });
}

// A step would end in the middle of a message.
TEST(ShardedOptimizerRefusals, ComplexParametersHaveNoFlatShards) {
  const Group group{Environment()};
  const std::vector<Tensor> complex = {torch::ones({3}, torch::kComplexFloat).requires_grad_()};
  using Flat = ShardedOptimizer<torch::optim::SGD>;
  expect_sentence(
      [&] { Flat(complex, torch::optim::SGDOptions(0.1), group, {.mode = ShardMode::kFlat}); },
      {"expected real parameters for flat shards", "ComplexFloat"});
}

}  // namespace
}  // namespace flashstep
