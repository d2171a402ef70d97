// Units that a forward uses several times, and units with frozen tensors, against a single process.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "flashstep/fully_sharded.h"
#include "flashstep/ops.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

using testing::close;
using testing::expect_sentence;
using testing::run_ranks;
using torch::Tensor;
using torch::nn::Linear;

constexpr int64_t kUsedWidth = 5;

struct UsedBlock : torch::nn::Module {
  Linear up{register_module("up", Linear(kUsedWidth, kUsedWidth))};
  Linear down{register_module("down", Linear(kUsedWidth, kUsedWidth))};
  Tensor forward(const Tensor& x) { return torch::tanh(down(torch::tanh(up(x)))); }
};

struct UsedCall {
  int64_t block;
  bool recomputed;
};

struct UsedNet : torch::nn::Module {
  torch::nn::ModuleList blocks{register_module("blocks", torch::nn::ModuleList())};
  std::vector<UsedCall> calls;
  explicit UsedNet(std::vector<UsedCall> of) : calls(std::move(of)) {
    for (int i = 0; i < 4; ++i) blocks->push_back(std::make_shared<UsedBlock>());
  }
  Tensor forward(Tensor x) {
    for (const auto& [block, recomputed] : calls) {
      const auto call = [this, i = block](const Tensor& y) {
        return run(*blocks[i]->as<UsedBlock>(), y);
      };
      x = recomputed ? recompute(call, x) : call(x);
    }
    return x;
  }
};

std::shared_ptr<UsedNet> make_used(std::vector<UsedCall> calls) {
  torch::manual_seed(4);
  return std::make_shared<UsedNet>(std::move(calls));
}

Tensor used_rows(int64_t step, int rank) {
  return torch::arange(2 * 3 * kUsedWidth).add(7 * step + 3 * rank).sin().view({2, 3, kUsedWidth});
}

void expect_used_gradients(FullyShardedDataParallel<UsedNet>& model, UsedNet& alone,
                           const Group& group) {
  for (int rank = 0; rank < group.world_size(); ++rank)
    (alone.forward(used_rows(0, rank)).sum() / group.world_size()).backward();
  model(used_rows(0, group.rank())).sum().backward();
  EXPECT_EQ(model.units().gathered_bytes(), 0);
  {
    const torch::NoGradGuard no_grad;  // as weights, which can be gathered
    for (const Tensor& parameter : model.parameters()) {
      EXPECT_TRUE(parameter.requires_grad() || !parameter.grad().defined());
      if (parameter.grad().defined()) parameter.copy_(parameter.grad());
    }
  }
  const auto expected = alone.named_parameters();
  for (const auto& [name, gradient] : model.gather_full_parameters()) {
    if (!expected[name].grad().defined()) continue;
    EXPECT_TRUE(close(gradient, expected[name].grad(), 1e-6, 1e-5)) << name;
  }
}

const std::vector<std::vector<UsedCall>> kUsedTwice = {
    {{0, false}, {0, false}},
    {{0, false}, {0, true}},
    {{0, true}, {0, false}},
    {{0, true}, {0, true}},
    {{0, true}, {1, true}, {1, true}, {2, false}, {0, true}, {0, false}},
    {{0, true}, {1, true}, {2, true}, {3, true}, {0, true}}};

TEST(UnitUses, GradientsOfAllCallsAddUp) {
  for (const int world_size : {1, 2, 3}) {
    run_ranks(world_size, [](const Environment& environment) {
      const Group group(environment);
      for (size_t i = 0; i < kUsedTwice.size(); ++i) {
        SCOPED_TRACE(i);
        const auto alone = make_used(kUsedTwice[i]);
        FullyShardedDataParallel model(make_used(kUsedTwice[i]), group);
        expect_used_gradients(model, *alone, group);
      }
    });
  }
}

// Which parameters are trained, by their names.
struct FrozenOfUsed {
  std::string name;
  bool (*is_trained)(const std::string& name);
};
const std::vector<FrozenOfUsed> kFrozenOfUsed = {
    {"biases", [](const std::string& name) { return name.ends_with("bias"); }},
    {"the last biases", [](const std::string& name) { return name.ends_with("down.bias"); }},
    {"one unit's biases", [](const std::string& name) { return name == "blocks.0.up.bias"; }},
    {"one block", [](const std::string& name) { return name.starts_with("blocks.1."); }}};

std::shared_ptr<UsedNet> make_used_frozen(const FrozenOfUsed& frozen, std::vector<UsedCall> calls) {
  auto net = make_used(std::move(calls));
  for (const auto& item : net->named_parameters())
    item.value().requires_grad_(frozen.is_trained(item.key()));
  return net;
}

TEST(UnitUses, AStepInBackwardUpdatesAUnitOnce) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    for (size_t i = 0; i < 4 * kUsedTwice.size(); ++i) {
      SCOPED_TRACE(i);
      const auto make = [i] {
        const std::vector<UsedCall>& calls = kUsedTwice[i / 4];
        return i % 2 == 0 ? make_used(calls) : make_used_frozen(kFrozenOfUsed[1], calls);
      };
      // In another dtype each forward's gradients come by themselves.
      const torch::ScalarType dtype = i % 4 < 2 ? torch::kFloat : torch::kDouble;
      const FullyShardOptions sharded{.compute_dtype = dtype};
      FullyShardedDataParallel after(make(), group, sharded), in(make(), group, sharded);
      const torch::optim::AdamWOptions options(1e-2);
      torch::optim::AdamW after_optimizer(after.parameters(), options);
      torch::optim::AdamW in_optimizer(in.parameters(), options);
      in.step_in_backward(in_optimizer);
      for (int64_t step = 0; step < 3; ++step) {
        const Tensor x = used_rows(step, group.rank()).to(dtype);
        after_optimizer.zero_grad();
        after(x).sum().backward();
        after_optimizer.step();
        // One step through two forwards.
        (0.5 * in(x).sum() + 0.5 * in(x).sum()).backward();
        for (const Tensor& parameter : in.parameters()) EXPECT_FALSE(parameter.grad().defined());
        EXPECT_EQ(in.units().gathered_bytes(), 0);
      }
      const auto expected = after.gather_full_parameters(), got = in.gather_full_parameters();
      for (size_t p = 0; p < expected.size(); ++p)
        EXPECT_TRUE(close(got[p].second, expected[p].second, 1e-5, 1e-5)) << expected[p].first;
    }
  });
}

TEST(UnitUses, FrozenTensorsGiveGradientsToWhatComesBefore) {
  const std::vector<std::vector<UsedCall>> all = {
      {{0, false}, {1, false}, {2, false}, {3, false}},
      {{0, true}, {1, true}, {2, true}, {3, true}},
      {{0, true}, {1, false}, {0, false}, {1, true}, {2, false}, {3, false}}};
  for (const int world_size : {1, 2}) {
    run_ranks(world_size, [&](const Environment& environment) {
      const Group group(environment);
      for (const FrozenOfUsed& frozen : kFrozenOfUsed) {
        for (size_t i = 0; i < all.size(); ++i) {
          for (const bool reshard : {true, false}) {
            SCOPED_TRACE(frozen.name + ", " + std::to_string(i));
            const auto alone = make_used_frozen(frozen, all[i]);
            FullyShardedDataParallel model(make_used_frozen(frozen, all[i]), group,
                                           {.reshard_after_forward = reshard});
            expect_used_gradients(model, *alone, group);
          }
        }
      }
    });
  }
}

// A graph that was kept needs them again, and so does a gradient of what the model was given;
// behind a metric that threw as well.
TEST(UnitUses, FrozenTensorsOfAGraphThatWasKept) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const std::vector<UsedCall> calls = {{0, false}, {1, false}, {2, false}, {3, false}};
    const auto alone = make_used_frozen(kFrozenOfUsed[1], calls);
    FullyShardedDataParallel model(make_used_frozen(kFrozenOfUsed[1], calls), group);
    const Tensor x = used_rows(0, 0).requires_grad_(), own_x = used_rows(0, 0).requires_grad_();
    const Tensor expected = alone->forward(x).sum(), loss = model(own_x).sum();
    EXPECT_ANY_THROW(model(torch::ones({2, kUsedWidth + 1})));
    for (const bool keeps : {true, false}) {
      expected.backward({}, keeps);
      loss.backward({}, keeps);
      EXPECT_TRUE(close(own_x.grad(), x.grad(), 1e-6, 1e-5));
      EXPECT_EQ(model.units().gathered_bytes(), 0);
    }
  });
}

TEST(UnitUses, FrozenTensorsAreFreedInBackward) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    std::vector<UsedCall> calls;
    for (int64_t i = 0; i < 4; ++i) calls.push_back({i, false});
    FullyShardedDataParallel model(make_used_frozen(kFrozenOfUsed[0], calls), group);
    int64_t most = 0;
    for (const Tensor& parameter : model.parameters()) {
      if (!parameter.requires_grad()) continue;
      parameter.register_hook(
          [&](const Tensor&) { most = std::max(most, model.units().gathered_bytes()); });
    }
    for (int step = 0; step < 2; ++step) {
      model(used_rows(step, group.rank())).sum().backward();
      EXPECT_TRUE(model(used_rows(step, 0)).requires_grad()) << "a metric, without a backward";
    }
    // The one that computes, the one before it, and the one that travels; with 28 padded elements
    // a matrix, and 48 bytes at least a vector, which no compute dtype gives memory.
    EXPECT_LE(most, 3 * 2 * 32 * 4);
    EXPECT_GT(most, 0);
  });
}

TEST(UnitUses, RanksThatCallOthersAreNamed) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const std::vector<UsedCall> same = {{0, false}, {1, false}, {3, false}};
    const std::vector<UsedCall> first = {{0, false}, {2, false}, {3, false}};
    const std::vector<UsedCall> other = {{0, false}, {3, false}, {2, false}};
    FullyShardedDataParallel model(make_used(same), group);
    for (const int agreed : {0, 1, 3}) {
      model.module()->calls = same;
      for (int i = 0; i < agreed; ++i) model(used_rows(i, group.rank())).sum().backward();
      model.module()->calls = group.is_first() ? first : other;
      expect_sentence([&] { model(used_rows(0, group.rank())); },
                      {"[fully sharded]", "the same calls of units", "rank 1"});
      EXPECT_EQ(model.units().gathered_bytes(), 0);
    }
    model.module()->calls = same;
    for (const Tensor& parameter : model.parameters()) parameter.mutable_grad().reset();
    const auto alone = make_used(same);
    expect_used_gradients(model, *alone, group);
  });
}

TEST(UnitUses, RefusesAGraphOfGradients) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const std::vector<UsedCall> calls = {{0, false}, {1, false}};
    FullyShardedDataParallel model(make_used(calls), group);
    expect_sentence(
        [&] {
          model(used_rows(0, group.rank()))
              .sum()
              .backward({}, /*retain_graph=*/true,
                        /*create_graph=*/true);
        },
        {"[fully sharded]", "create_graph"});
    model.forget_step();
    const Tensor x = used_rows(0, group.rank()).requires_grad_();
    expect_sentence(
        [&] {
          torch::autograd::grad({model(x).sum()}, {x}, {}, /*retain_graph=*/true,
                                /*create_graph=*/true);
        },
        {"[fully sharded]", "create_graph"});
    model.forget_step();
    const auto alone = make_used(calls);
    expect_used_gradients(model, *alone, group);
  });
}

}  // namespace
}  // namespace flashstep
