// A module that makes full sharding hard: what the tests on CPUs and GPUs train.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/functional/normalization.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include "flashstep/error.h"
#include "flashstep/fully_sharded.h"
#include "flashstep/ops.h"

namespace flashstep {

inline constexpr int64_t kNetWidth = 5, kNetInner = 7,
                         kNetWords = 11;  // no number of ranks divides them

struct HardBlock : torch::nn::Module {
  torch::nn::Linear up{register_module("up", torch::nn::Linear(kNetWidth, kNetInner))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(kNetInner, kNetWidth))};
  torch::Tensor gain = register_parameter("gain", torch::ones({kNetWidth}));
  bool throws = false;
  torch::Tensor forward(const torch::Tensor& x) {
    if (throws) throw UserError("this block throws");
    return x + down(torch::relu(up(torch::layer_norm(x, {kNetWidth}, gain))));
  }
};

// Tied, frozen, nested, reused, with lists and with parameters of its own.
struct HardNet : torch::nn::Module {
  torch::Tensor words = register_parameter("words", torch::randn({kNetWords, kNetWidth}));
  torch::nn::ModuleList blocks{register_module("blocks", torch::nn::ModuleList())};
  torch::Tensor norm = register_parameter("norm", torch::ones({kNetWidth}));
  torch::Tensor fixed =
      register_parameter("fixed", torch::randn({3, kNetWidth}), /*requires_grad=*/false);
  int64_t recomputed = -1;  // block
  bool is_past = false;     // calls block 1 without run()

  HardNet() {
    for (int i = 0; i < 3; ++i) blocks->push_back(std::make_shared<HardBlock>());
    block(1).up->bias.set_requires_grad(false);
  }
  HardBlock& block(int64_t i) { return *blocks[i]->as<HardBlock>(); }
  torch::Tensor forward(const torch::Tensor& ids) {
    torch::Tensor x = torch::embedding(words, ids) + fixed.sum(0);
    for (int64_t i = 0; i < 3; ++i) {
      if (i == 1 && is_past) {
        x = block(1).forward(x);
      } else if (i == recomputed) {
        x = recompute([this, i](const torch::Tensor& y) { return run(block(i), y); }, x);
      } else {
        x = run(block(i), x);
      }
    }
    x = run(block(0), x);  // once more
    return torch::linear(torch::layer_norm(x, {kNetWidth}, norm), words);
  }
};

inline std::shared_ptr<HardNet> make_hard_net() {
  torch::manual_seed(3);
  return std::make_shared<HardNet>();
}

// Rows of all ranks; a rank takes its own.
inline torch::Tensor ids_of(int64_t step, int rows = 12) {
  return torch::arange(rows * 4).mul(step + 3).square().add(step).remainder(kNetWords).view(
      {rows, 4});
}
inline torch::Tensor rows_of_rank(const torch::Tensor& ids, const Group& group) {
  const int64_t count = ids.size(0) / group.world_size();
  return ids.slice(0, group.rank() * count, (group.rank() + 1) * count);
}
inline torch::Tensor loss_of_logits(const torch::Tensor& logits, const torch::Tensor& ids) {
  const torch::Tensor wide = logits.to(torch::kFloat);
  return torch::cross_entropy_loss(wide.flatten(0, 1), (ids + 1).remainder(kNetWords).flatten());
}

inline std::map<std::string, torch::Tensor> weights_of(torch::nn::Module& module) {
  std::map<std::string, torch::Tensor> result;
  for (const auto& item : module.named_parameters())
    result[item.key()] = item.value().detach().clone();
  return result;
}

inline constexpr double kNetClip = 0.5;

// `steps` of one process, over all rows.
inline std::map<std::string, torch::Tensor> train_alone(HardNet& net, int64_t steps) {
  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
  for (int64_t step = 0; step < steps; ++step) {
    loss_of_logits(net.forward(ids_of(step)), ids_of(step)).backward();
    torch::nn::utils::clip_grad_norm_(net.parameters(), kNetClip);
    optimizer.step();
    optimizer.zero_grad();
  }
  return weights_of(net);
}

// The same on all ranks, each over its own rows.
inline void train_sharded(FullyShardedDataParallel<HardNet>& model,
                          torch::optim::Optimizer& optimizer, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    const torch::Tensor ids =
        rows_of_rank(ids_of(step), model.group()).to(model.module()->words.device());
    loss_of_logits(model(ids), ids).backward();
    EXPECT_EQ(model.units().gathered_bytes(), 0) << "after backward all are shards";
    model.clip_grad_norm(kNetClip);
    optimizer.step();
    optimizer.zero_grad();
  }
}

// Ways to divide it.
struct ShardCase {
  std::string name;
  FullyShardOptions options;
  int64_t recomputed = -1;
};
inline std::vector<ShardCase> shard_cases() {
  std::vector<ShardCase> result(4);
  result[0].name = "as it comes";
  result[1].name = "whole until backward";
  result[1].options.reshard_after_forward = false;
  result[2].name = "recomputed";
  result[2].recomputed = 1;
  result[3].name = "everything divided, one unit";
  result[3].options.shard = [](const std::string&, const torch::Tensor&) { return true; };
  result[3].options.units = {"blocks.2"};
  return result;
}

}  // namespace flashstep
