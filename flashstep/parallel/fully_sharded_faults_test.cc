// A rank that is killed while the others gather parameters: they throw, and end by themselves.
#include <chrono>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "flashstep/base/called_back.h"
#include "flashstep/error.h"
#include "flashstep/fully_sharded.h"
#include "flashstep/ops.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

constexpr int kVictim = 1, kBlocks = 4;

struct Block : torch::nn::Module {
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(6, 6))};
  bool dies = false, throws = false;
  torch::Tensor forward(const torch::Tensor& x) {
    if (dies) std::raise(SIGKILL);
    if (throws) throw std::runtime_error("out of ideas");
    return torch::relu(linear(x));
  }
};

struct Net : torch::nn::Module {
  torch::nn::Sequential blocks{register_module("blocks", torch::nn::Sequential())};
  explicit Net(int count = kBlocks) {
    for (int i = 0; i < count; ++i) blocks->push_back(std::make_shared<Block>());
  }
  torch::Tensor forward(const torch::Tensor& x) { return run(blocks, x); }
};

// Block `last` is the last that rank kVictim enters: the others miss it in the middle of a forward
// (the unit after it is gathered) or of a backward. Those of another replica miss the means only.
void lose_a_rank_in_block(int last, int world_size = 3, int shard_ranks = 0) {
  testing::start_ranks(
      world_size,
      [=](const Environment& environment) {
        GroupOptions options;
        options.timeouts.silence = std::chrono::milliseconds(2000);
        options.timeouts.grace = std::chrono::milliseconds(2000);
        const Group group(environment, options);
        const auto net = std::make_shared<Net>();
        FullyShardedDataParallel model(net, group, {.shard_ranks = shard_ranks});
        model(torch::ones({2, 6})).sum().backward();
        net->blocks[last]->as<Block>()->dies = group.rank() == kVictim;
        try {
          model(torch::ones({2, 6})).sum().backward();
          ADD_FAILURE() << "expected LostRank";
        } catch (const LostRank& lost) {
          EXPECT_EQ(lost.rank(), kVictim);
          throw;
        }
      },
      [](testing::Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(30));
        for (int rank = 0; rank < ranks.world_size(); ++rank) {
          if (rank == kVictim) continue;
          EXPECT_TRUE(!ranks.was_killed(rank) && ranks.exit_code(rank) == 1) << ranks.all_output();
          EXPECT_NE(ranks.output(rank).find("flashstep: ["), std::string::npos)
              << ranks.all_output();
          EXPECT_EQ(ranks.output(rank).find("Failure"), std::string::npos) << ranks.all_output();
        }
      });
}

TEST(FullyShardedFaults, ARankIsLostInTheMiddleOfAForward) { lose_a_rank_in_block(1); }
TEST(FullyShardedFaults, ARankIsLostBeforeBackward) { lose_a_rank_in_block(kBlocks - 1); }
TEST(FullyShardedFaults, ARankOfAnotherReplicaIsLost) { lose_a_rank_in_block(1, 4, 2); }

// Blocks that are computed again in backward, where one rank's second block throws: it sends
// nothing more, and its error is told.
struct RecomputedNet : Net {
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = x;
    for (const auto& block : *blocks) {
      auto& own = *std::dynamic_pointer_cast<Block>(block.ptr());
      y = recompute([&own](const torch::Tensor& input) { return run(own, input); }, y);
    }
    return y;
  }
};

TEST(FullyShardedFaults, ARankThatThrowsAloneInBackwardSaysWhy) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = std::make_shared<RecomputedNet>();
    FullyShardedDataParallel model(net, group);
    const auto x = torch::ones({2, 6}).requires_grad_();
    for (int step = 0; step < 2; ++step) model(x).sum().backward();
    const auto loss = model(x).sum();
    net->blocks[1]->as<Block>()->throws = group.rank() == kVictim;
    try {
      loss.backward();
      ADD_FAILURE() << "expected an exception";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("out of ideas"), std::string::npos) << error.what();
      if (group.rank() == kVictim) group.fail(error.what());
    }
  });
}

// The gradients that such a backward leaves are of some units alone.
TEST(FullyShardedFaults, ABackwardThatAForwardInItBrokeOffIsRefused) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    FullyShardedDataParallel model(std::make_shared<RecomputedNet>(), group);
    auto& throws = model.module()->blocks[1]->as<Block>()->throws;
    const auto x = torch::ones({2, 6}).requires_grad_();
    const auto loss = model(x).sum();
    throws = true;
    EXPECT_ANY_THROW(loss.backward());
    throws = false;
    EXPECT_EQ(model.units().gathered_bytes(), 0);
    testing::expect_sentence([&] { model(x); }, {"broken off", "forget_step()"});
    model.forget_step();
    model(x).sum().backward();
    for (const torch::Tensor& shard : model.parameters()) EXPECT_TRUE(shard.grad().defined());
  });
}

// Gradients travel in the dtype that they would have, also those that a rank has not.
struct OneSidedNet : torch::nn::Module {
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(6, 6))};
  bool uses = true;
  torch::Tensor forward(const torch::Tensor& x) {
    return uses ? linear(x.to(linear->weight.scalar_type())) : x + linear->bias;
  }
};

TEST(FullyShardedFaults, AGradientThatOneRankAloneLacksIsNamed) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    for (const bool announces : {false, true}) {
      const auto net = std::make_shared<OneSidedNet>();
      net->uses = group.rank() != kVictim;
      if (announces) net->linear->weight.set_grad_dtype(torch::kBFloat16);
      FullyShardOptions options;
      if (!announces) options.compute_dtype = torch::kBFloat16;
      FullyShardedDataParallel model(net, group, options);
      const auto loss = model(torch::ones({2, 6})).to(torch::kFloat).sum();
      if (net->uses) {
        loss.backward();
      } else {
        testing::expect_sentence([&] { loss.backward(); },
                                 {"backward gave none for linear.weight on rank 1"});
      }
      EXPECT_TRUE(net->linear->weight.grad().isnan().all().item<bool>());
    }
  });
}

struct SparseNet : torch::nn::Module {
  torch::nn::Embedding table{register_module(
      "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 6).sparse(true)))};
  torch::Tensor forward(const torch::Tensor& ids) { return table(ids); }
};

TEST(FullyShardedFaults, SparseGradientsAreRefusedByName) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    FullyShardedDataParallel model(std::make_shared<SparseNet>(), group);
    const auto loss = model(torch::tensor({1, 3})).sum();
    testing::expect_sentence([&] { loss.backward(); },
                             {"expected dense gradients", "table.weight"});
  });
}

// Ctrl-C in a wait for a gather: what others will write to is not freed, and when they come it goes
// on.
TEST(FullyShardedFaults, WhatIsInFlightKeepsItsMemory) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    torch::manual_seed(1);
    FullyShardedDataParallel model(std::make_shared<Net>(), group);
    const auto x = torch::ones({2, 6});
    const auto before = model(x);
    if (group.rank() == 0) {
      set_wants_to_stop([] { return true; });
      EXPECT_THROW(model(x), Interrupted);
      set_wants_to_stop(nullptr);
      EXPECT_GT(model.units().gathered_bytes(), 0);
    } else {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      model.forget_step();
    }
    EXPECT_TRUE(torch::equal(model(x), before));
    const torch::NoGradGuard no_grad;
    model(x);
    EXPECT_EQ(model.units().gathered_bytes(), 0);
  });
}

// The same in a backward, in which rank 1 comes late: to the gather, and then forgets the step as
// well, or to the means, which it still gets.
void interrupt_a_backward(bool of_means) {
  testing::run_ranks(2, [=](const Environment& environment) {
    const Group group(environment);
    torch::manual_seed(1);
    const auto net = std::make_shared<Net>(/*count=*/1);
    const auto all = [](const std::string&, const torch::Tensor&) { return true; };
    FullyShardedDataParallel model(net, group, {.shard = all});  // one message of means
    const auto x = torch::ones({2, 6}) * (1 + group.rank());
    const auto step = [&] {
      model.zero_grad();
      const auto y = model(x);
      y.sum().backward();
      return std::vector{y, model.parameters()[0].grad(), model.parameters()[1].grad()};
    };
    const auto undisturbed = step();
    model.zero_grad();
    const auto y = model(x);
    const auto late = [](const torch::Tensor& /*gradient*/) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
    };
    if (group.rank() == 0) {
      set_wants_to_stop([] { return true; });
      EXPECT_THROW(y.sum().backward(), Interrupted);
      set_wants_to_stop(nullptr);
      testing::expect_sentence([&] { model(x); }, {"broken off", "forget_step()"});
    } else if (of_means) {
      const auto hook = model.parameters()[0].register_hook(late);
      y.sum().backward();
      model.parameters()[0].remove_hook(hook);
    } else {
      late({});
    }
    model.forget_step();
    for (const torch::Tensor& shard : model.parameters()) EXPECT_FALSE(shard.grad().defined());
    for (int again = 0; again < 2; ++again) {
      const auto after = step();
      for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(torch::equal(after[i], undisturbed[i]));
    }
    EXPECT_EQ(model.units().gathered_bytes(), 0);
  });
}

TEST(FullyShardedFaults, ABackwardThatWasInterruptedInAGatherIsForgotten) {
  interrupt_a_backward(/*of_means=*/false);
}
TEST(FullyShardedFaults, ABackwardThatWasInterruptedBeforeTheMeansIsForgotten) {
  interrupt_a_backward(/*of_means=*/true);
}

}  // namespace
}  // namespace flashstep
