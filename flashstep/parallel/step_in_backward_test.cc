// The optimizer in backward of fully sharded modules: the bits of a step after backward, and no
// gradients but one unit's.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "flashstep/error.h"
#include "flashstep/fully_sharded.h"
#include "flashstep/parallel/test_hard_net.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

using testing::expect_sentence;
using testing::run_ranks;
using testing::same_bits;
using torch::Tensor;

TEST(StepInBackward, HasTheBitsOfAStepAfterBackward) {
  for (const int world_size : {1, 2, 3}) {
    run_ranks(world_size, [](const Environment& environment) {
      const Group group(environment);
      for (const ShardCase& c : shard_cases()) {
        SCOPED_TRACE(c.name);
        const auto after_net = make_hard_net(), in_net = make_hard_net();
        after_net->recomputed = in_net->recomputed = c.recomputed;
        FullyShardedDataParallel after(after_net, group, c.options);
        FullyShardedDataParallel in(in_net, group, c.options);
        const torch::optim::AdamWOptions options(1e-2);
        torch::optim::AdamW after_optimizer(after.parameters(), options);
        torch::optim::AdamW in_optimizer(in.parameters(), options);
        in.step_in_backward(in_optimizer);
        for (int64_t step = 0; step < 5; ++step) {
          const Tensor ids = rows_of_rank(ids_of(step), group);
          after_optimizer.zero_grad();
          loss_of_logits(after(ids), ids).backward();
          after_optimizer.step();
          loss_of_logits(in(ids), ids).backward();
          in_optimizer.step();  // finds nothing to do
          const Tensor expected = after.units().gradient_norm();
          EXPECT_TRUE(at::allclose(in.units().gradient_norm(), expected, 1e-6, 0));
          for (const Tensor& parameter : in.parameters()) EXPECT_FALSE(parameter.grad().defined());
          EXPECT_EQ(in.units().gathered_bytes(), 0);
        }
        const auto expected = after.gather_full_parameters(), got = in.gather_full_parameters();
        for (size_t i = 0; i < expected.size(); ++i)
          EXPECT_TRUE(same_bits(got[i].second, expected[i].second)) << expected[i].first;
      }
    });
  }
}

// At every update the gradients of one unit are there, and no others.
TEST(StepInBackward, NoGradientOutlivesItsUnit) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = make_hard_net();
    FullyShardedDataParallel model(net, group);
    std::vector<std::vector<std::string>> updated;
    model.units().update_in_backward([&](const Tensor& not_finite) {
      EXPECT_EQ(not_finite.item<float>(), 0);
      auto& names = updated.emplace_back();
      for (const auto& item : net->named_parameters()) {
        if (item.value().grad().defined()) names.push_back(item.key());
      }
    });
    const Tensor ids = rows_of_rank(ids_of(1), group);
    loss_of_logits(model(ids), ids).backward();
    const std::vector<std::vector<std::string>> expected = {
        {"blocks.2.up.weight", "blocks.2.down.weight"},
        {"blocks.2.gain", "blocks.2.up.bias", "blocks.2.down.bias"},
        {"blocks.1.up.weight", "blocks.1.down.weight"},
        {"blocks.1.gain", "blocks.1.down.bias"},
        {"blocks.0.up.weight", "blocks.0.down.weight"},
        {"blocks.0.gain", "blocks.0.up.bias", "blocks.0.down.bias"},
        {"words"},
        {"norm"}};
    EXPECT_EQ(updated, expected);
    expect_sentence([&] { model.clip_grad_norm(1); }, {"expected gradients to clip"});
    // And back: gradients stay.
    model.units().update_in_backward({});
    loss_of_logits(model(ids), ids).backward();
    EXPECT_TRUE(net->words.grad().defined());
    EXPECT_GT(model.clip_grad_norm(1).item<float>(), 0);
  });
}

// Also of a unit that is computed again, which a forward without a backward has called as well.
TEST(StepInBackward, AMetricBeforeHoldsNoGradients) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = make_hard_net();
    net->recomputed = 2;
    FullyShardedDataParallel model(net, group);
    size_t updates = 0, before_words = 0;
    model.units().update_in_backward([&](const Tensor& /*not_finite*/) { ++updates; });
    net->words.register_hook([&](const Tensor&) { before_words = updates; });
    const Tensor ids = rows_of_rank(ids_of(1), group);
    for (const bool metric : {false, true, true}) {
      if (metric) {
        EXPECT_TRUE(model(ids).requires_grad());
      }
      updates = before_words = 0;
      loss_of_logits(model(ids), ids).backward();
      EXPECT_EQ(updates, 8u);
      EXPECT_EQ(before_words, 2u) << "block 2, while two units travel";
    }
  });
}

TEST(StepInBackward, SaysWhatIsNotFinite) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = make_hard_net();
    FullyShardedDataParallel model(net, group);
    std::vector<float> flags;
    model.units().update_in_backward(
        [&](const Tensor& not_finite) { flags.push_back(not_finite.item<float>()); });
    const Tensor ids = rows_of_rank(ids_of(1), group);
    (loss_of_logits(model(ids), ids) * NAN).backward();
    EXPECT_EQ(flags, std::vector<float>(8, 1));
    EXPECT_TRUE(std::isnan(model.units().gradient_norm().item<float>()));
  });
}

TEST(StepInBackward, GoesOnAfterAnException) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = make_hard_net();
    FullyShardedDataParallel model(net, group);
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
    model.step_in_backward(optimizer);
    const Tensor ids = rows_of_rank(ids_of(1), group);
    Tensor logits = model(ids);
    logits.register_hook([](const Tensor&) -> Tensor { throw UserError("a hook throws"); });
    EXPECT_ANY_THROW(loss_of_logits(logits, ids).backward());
    if (model.units().is_unfinished()) model.forget_step();
    const auto before = model.gather_full_parameters();
    loss_of_logits(model(ids), ids).backward();
    const auto after = model.gather_full_parameters();
    for (size_t i = 0; i < after.size(); ++i) {
      const bool is_fixed = after[i].first == "fixed" || after[i].first == "blocks.1.up.bias";
      EXPECT_EQ(same_bits(after[i].second, before[i].second), is_fixed) << after[i].first;
    }
  });
}

}  // namespace
}  // namespace flashstep
