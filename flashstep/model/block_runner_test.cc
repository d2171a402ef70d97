// Block runners: what they see, and what is computed again in backward.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/error.h"
#include "flashstep/model.h"
#include "flashstep/model/test_tiny.h"
#include "flashstep/testing/compare.h"

namespace flashstep {
namespace {

using testing::gradients;
using testing::tiny;

TEST(BlockRunner, SeesEveryBlockInOrderAndCanBeCombined) {
  Transformer model(tiny(), 1);
  const auto tokens = torch::randint(61, {2, 8});
  const at::NoGradGuard no_grad;
  const auto expected = model->forward(tokens);
  std::vector<std::string> seen, entered;
  model->set_block_runner([&](std::span<const BlockCall> blocks, at::Tensor x) {
    for (const auto& block : blocks) {
      seen.push_back(block.name);
      x = block.forward(x);
    }
    return x;
  });
  const BlockRunner inner = model->block_runner();
  model->set_block_runner([&, inner](std::span<const BlockCall> blocks, at::Tensor x) {
    std::vector<BlockCall> wrapped(blocks.begin(), blocks.end());
    for (auto& block : wrapped) {
      EXPECT_EQ(block.module->named_parameters().size(), 9u);
      block.forward = [&entered, name = block.name, run = block.forward](const at::Tensor& input) {
        entered.push_back(name);
        return run(input);
      };
    }
    return inner(wrapped, x);
  });
  EXPECT_TRUE(testing::same_bits(model->forward(tokens), expected));
  EXPECT_EQ(seen, (std::vector<std::string>{"layers.0", "layers.1", "layers.2"}));
  EXPECT_EQ(entered, seen);
  EXPECT_EQ(model->named_parameters()[1].key(), "layers.0.attn.q_proj.weight");
}

TEST(BlockRunner, CanCallABlockTwice) {
  // What recompute does: once without gradients, once more for them.
  torch::manual_seed(3);
  const auto tokens = torch::randint(61, {2, 24});
  Transformer model(tiny(), 1);
  const auto expected = gradients(model, tokens);
  model->set_block_runner([](std::span<const BlockCall> blocks, at::Tensor x) {
    for (const auto& block : blocks) {
      {
        const at::NoGradGuard no_grad;
        block.forward(x);
      }
      x = block.forward(x);
    }
    return x;
  });
  const auto got = gradients(model, tokens);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(testing::same_bits(got[i], expected[i]));
}

TEST(BlockRunner, RecomputesGroupsWithTheSameBits) {
  torch::manual_seed(4);
  const auto tokens = torch::randint(61, {2, 24});
  Transformer model(tiny(), 1);
  const auto expected = gradients(model, tokens);
  for (const int64_t size : {1, 2, 3, 7}) {
    int64_t calls = 0;
    model->set_block_runner(
        recompute_blocks(size, [&](std::span<const BlockCall> blocks, at::Tensor x) {
          ++calls;
          EXPECT_LE(static_cast<int64_t>(blocks.size()), size);
          return run_blocks_in_order(blocks, x);
        }));
    const auto got = gradients(model, tokens);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(testing::same_bits(got[i], expected[i])) << size;
    EXPECT_EQ(calls, 2 * ((3 + size - 1) / size)) << "once forward, once in backward";
    const at::NoGradGuard no_grad;
    calls = 0;
    model->forward(tokens);
    EXPECT_EQ(calls, (3 + size - 1) / size) << "once without a graph";
  }
  EXPECT_THROW(recompute_blocks(0), UserError);
}

TEST(Transformer, RecomputesAroundItsBlockRunner) {
  torch::manual_seed(4);
  const auto tokens = torch::randint(61, {2, 24});
  Transformer model(tiny(), 1);
  const auto expected = gradients(model, tokens);
  int64_t calls = 0;
  model->set_block_runner([&](std::span<const BlockCall> blocks, at::Tensor x) {
    ++calls;
    return run_blocks_in_order(blocks, x);
  });
  model->set_recompute(Recompute::kBlock, 2);
  const auto got = gradients(model, tokens);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(testing::same_bits(got[i], expected[i]));
  EXPECT_EQ(calls, 4) << "three blocks in two groups, twice";
  model->set_recompute(Recompute::kNone);
  gradients(model, tokens);
  EXPECT_EQ(calls, 5);
  EXPECT_THROW(model->set_recompute(Recompute::kBlock, 0), UserError);
  EXPECT_THROW(model->set_recompute(Recompute::kBlock, 1, -1), UserError);
}

TEST(Transformer, RecomputesTheFirstBlocksOnly) {
  torch::manual_seed(4);
  const auto tokens = torch::randint(61, {2, 24});
  Transformer model(tiny(), 1);
  const auto expected = gradients(model, tokens);
  std::vector<std::vector<int64_t>> calls;
  model->set_block_runner([&](std::span<const BlockCall> blocks, at::Tensor x) {
    auto& indices = calls.emplace_back();
    for (const BlockCall& block : blocks) indices.push_back(block.index);
    return run_blocks_in_order(blocks, x);
  });
  const std::vector<std::vector<std::vector<int64_t>>> expected_calls = {
      {{0}, {1, 2}, {0}}, {{0}, {1}, {2}, {1}, {0}}, {{0}, {1}, {2}, {2}, {1}, {0}}};
  for (int64_t count = 1; count <= 4; ++count) {
    model->set_recompute(Recompute::kBlock, 1, count);
    calls.clear();
    const auto got = gradients(model, tokens);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(testing::same_bits(got[i], expected[i]));
    EXPECT_EQ(calls, expected_calls[static_cast<size_t>(std::min<int64_t>(count, 3) - 1)]);
  }
}

}  // namespace
}  // namespace flashstep
