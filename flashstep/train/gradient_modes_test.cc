// Clipping and fp16's scaling of whatever gradients an optimizer uses: whole, means of ranks, or
// divided between them.
#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "flashstep/amp.h"
#include "flashstep/data_parallel.h"
#include "flashstep/fully_sharded.h"
#include "flashstep/loop.h"
#include "flashstep/optim.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::PlainToy;
using torch::Tensor;

using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;
using torch::optim::SGDOptions;

enum class Way { kPlain, kWhole, kFlat };

OptimizerPtr make_sgd(DistributedDataParallel<PlainToy>& net, Way way) {
  if (way == Way::kPlain)
    return std::make_unique<torch::optim::SGD>(net.parameters(), SGDOptions(0.1));
  const ShardMode mode = way == Way::kFlat ? ShardMode::kFlat : ShardMode::kWhole;
  return std::make_unique<ShardedOptimizer<torch::optim::SGD>>(net, SGDOptions(0.1),
                                                               ShardOptions{.mode = mode});
}

// The toy after a step on the rows of both ranks, by LibTorch's own means; and its norm.
std::pair<std::shared_ptr<PlainToy>, double> reference_step(double max_norm) {
  torch::manual_seed(5);
  const auto toy = std::make_shared<PlainToy>();
  torch::optim::SGD sgd(toy->parameters(), SGDOptions(0.1));
  torch::manual_seed(100);
  const Tensor rows = torch::randn({8, 10});
  toy->forward(rows).square().mean().backward();
  double squares = 0;
  for (const Tensor& p : toy->parameters()) {
    if (p.grad().defined()) squares += p.grad().square().sum().item<double>();
  }
  const double norm = std::sqrt(squares), factor = std::min(1.0, max_norm / (norm + 1e-6));
  for (const Tensor& p : toy->parameters()) {
    if (p.grad().defined()) p.mutable_grad().mul_(factor);
  }
  sgd.step();
  return {toy, norm};
}

Tensor own_rows(const Group& group) {
  torch::manual_seed(100);
  return torch::randn({8, 10}).chunk(group.world_size())[static_cast<size_t>(group.rank())];
}

void expect_close(const torch::nn::Module& a, const torch::nn::Module& b) {
  for (size_t i = 0; i < a.parameters().size(); ++i)
    EXPECT_TRUE(testing::close(a.parameters()[i].detach(), b.parameters()[i].detach(), 1e-6)) << i;
}

TEST(GradientModes, ClipToTheGlobalNorm) {
  for (const int ranks : {1, 2}) {
    testing::run_ranks(ranks, [](const Environment& environment) {
      const Group group(environment);
      for (const Way way : {Way::kPlain, Way::kWhole, Way::kFlat}) {
        for (const double max_norm : {1e-3, 1e3}) {
          SCOPED_TRACE(str(static_cast<int>(way), ", ", max_norm));
          const auto [expected, norm] = reference_step(max_norm);
          torch::manual_seed(5);
          DistributedDataParallel net(std::make_shared<PlainToy>(), group);
          const OptimizerPtr optimizer = make_sgd(net, way);
          net(own_rows(group)).square().mean().backward();
          const Tensor before = clip_grad_norm(*optimizer, max_norm);
          EXPECT_NEAR(before.item<double>(), norm, 1e-6 * norm);
          EXPECT_EQ(before.scalar_type(), torch::kFloat);
          optimizer->step();
          expect_close(*net.module(), *expected);
          testing::expect_sentence([&] { clip_grad_norm(*optimizer, 0); }, {"above 0"});
        }
      }
    });
  }
}

TEST(GradientModes, ScaledGradientsThatOverflowAreSkippedOnAllRanks) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    for (const Way way : {Way::kPlain, Way::kWhole, Way::kFlat}) {
      SCOPED_TRACE(static_cast<int>(way));
      const auto [expected, norm] = reference_step(1e-3);
      torch::manual_seed(5);
      DistributedDataParallel net(std::make_shared<PlainToy>(), group);
      const OptimizerPtr optimizer = make_sgd(net, way);
      GradientScaler scaler(torch::kCPU, {.initial_scale = 1024});
      const Tensor start = net.module()->fc1->weight.detach().clone();
      for (const bool overflows : {true, false}) {
        optimizer->zero_grad();
        // Of one rank, and of one parameter, whose elements the other rank may have.
        Tensor loss = net(own_rows(group)).square().mean();
        if (overflows && group.rank() == 1)
          loss = loss + net.module()->fc3->weight.sum() * INFINITY;
        scaler.scale_loss(loss).backward();
        const Tensor found_inf = scaler.unscale(*optimizer);
        EXPECT_EQ(found_inf.item<float>(), overflows ? 1 : 0);
        clip_grad_norm(*optimizer, 1e-3);
        scaler.step(*optimizer, found_inf);
        EXPECT_EQ(scaler.scale().item<float>(), 512);
        if (overflows) {
          EXPECT_TRUE(net.module()->fc1->weight.equal(start));
        }
      }
      expect_close(*net.module(), *expected);
    }
  });
}

// By an optimizer that knows nothing but shards.
TEST(GradientModes, OfAFullyShardedModuleAllRanksClipAndSkip) {
  const auto [toy, norm_of_toy] = reference_step(1e-3);
  for (const int ranks : {2, 4}) {  // 4: two replicas
    testing::run_ranks(ranks, [&](const Environment& environment) {
      const Group group(environment);
      torch::manual_seed(5);
      FullyShardedDataParallel net(std::make_shared<PlainToy>(), group, {.shard_ranks = 2});
      torch::optim::SGD optimizer(net.parameters(), SGDOptions(0.1));
      GradientScaler scaler(torch::kCPU, {.initial_scale = 1024});
      const auto start = net.gather_full_parameters();
      for (const bool overflows : {true, false}) {
        SCOPED_TRACE(overflows);
        optimizer.zero_grad();
        scaler.scale_loss(net(own_rows(group)).square().mean()).backward();
        if (overflows && group.rank() % 2 == 1)
          net.module()->fc3->weight.mutable_grad().fill_(INFINITY);
        const Tensor found_inf = scaler.unscale(optimizer);
        EXPECT_EQ(found_inf.item<float>(), overflows ? 1 : 0);
        const double norm = clip_grad_norm(optimizer, 1e-3).item<double>();
        EXPECT_EQ(std::isfinite(norm), !overflows);
        if (!overflows) {
          EXPECT_NEAR(norm, norm_of_toy, 1e-6 * norm_of_toy);
        }
        scaler.step(optimizer, found_inf);
        EXPECT_EQ(scaler.scale().item<float>(), 512);
        const auto expected = toy->named_parameters();
        const auto now = net.gather_full_parameters();
        for (size_t i = 0; i < now.size(); ++i) {
          const Tensor& value = overflows ? start[i].second : expected[now[i].first];
          EXPECT_TRUE(testing::close(now[i].second, value.detach(), overflows ? 0 : 1e-6))
              << now[i].first;
        }
      }
      net.step_in_backward(optimizer);
      net(own_rows(group)).square().mean().backward();
      testing::expect_sentence([&] { clip_grad_norm(optimizer, 1); }, {"gradients to clip"});
    });
  }
}

// Gradients of what the optimizer leaves alone add up from step to step.
TEST(GradientModes, AStepClipsToTheNormOfWhatItUpdates) {
  torch::manual_seed(5);
  PlainToy whole;
  torch::manual_seed(100);
  whole.forward(torch::randn({8, 10})).square().mean().backward();
  const double expected = whole.fc1->weight.grad().norm().item<double>();
  for (const bool divides : {false, true}) {
    testing::run_ranks(2, [&](const Environment& environment) {
      const Group group(environment);
      torch::manual_seed(5);
      PlainToy net;
      const auto parallel = divides ? full_sharding(net, group) : data_parallelism(net, group);
      torch::optim::SGD optimizer({net.fc1->weight}, SGDOptions(0));
      const auto loss = [&](int64_t, int64_t) {
        return net.forward(own_rows(group)).square().mean();
      };
      TrainStep step({net.fc1->weight}, optimizer, loss, {.max_norm = 1e-3}, parallel);
      for (int64_t i = 0; i < 3; ++i)
        EXPECT_NEAR(step.run(i).grad_norm.item<double>(), expected, 1e-6 * expected) << i;
    });
  }
}

}  // namespace
}  // namespace flashstep
