// Strategy torch, c10d's Reducer: what it averages, and what it was not prepared for.
#include <memory>
#include <optional>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "flashstep/data_parallel.h"
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

using WrappedLinear = DistributedDataParallel<torch::nn::LinearImpl>;

WrappedLinear wrapped(const Group& group) {
  torch::manual_seed(6);
  return WrappedLinear(Linear(3, 2), group, {.strategy = Strategy::kTorch});
}

Tensor rows_of(int rank) { return torch::arange(12).add(rank).sin().view({4, 3}); }

// The mean over the ranks of x's sums over its rows.
void expect_means(WrappedLinear& net, const Group& group) {
  Tensor expected = torch::zeros({3});
  for (int rank = 0; rank < group.world_size(); ++rank)
    expected += rows_of(rank).sum(0) / group.world_size();
  EXPECT_TRUE(close(net.module()->weight.grad(), expected.expand({2, 3}), 1e-6, 1e-6));
}

TEST(TorchReduction, AveragesInEvalMode) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    WrappedLinear net = wrapped(group);
    net.eval();
    net.forward(rows_of(group.rank()));  // no backward comes
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      net.forward(rows_of(group.rank())).sum().backward();
      expect_means(net, group);
    }
  });
}

TEST(TorchReduction, NamesABackwardThatItIsNotPreparedFor) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    for (const bool first_is_local : {true, false}) {
      WrappedLinear net = wrapped(group);
      const Tensor loss = net.forward(rows_of(group.rank())).sum();
      std::optional<GradientReducer::NoSync> local;
      if (first_is_local) {
        local.emplace(net.no_sync());
        expect_sentence([&] { loss.backward(); }, {"strategy torch", "under no_sync()"});
      } else {
        loss.backward({}, /*retain_graph=*/true);
        expect_means(net, group);
        expect_sentence([&] { loss.backward(); }, {"strategy torch", "was not prepared for"});
      }
    }
  });
}

TEST(TorchReduction, AccumulatesUnderNoSync) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    WrappedLinear net = wrapped(group);
    for (int step = 0; step < 2; ++step) {
      net.zero_grad();
      {
        const auto local = net.no_sync();
        (net.forward(rows_of(group.rank())).sum() / 2).backward();
      }
      (net.forward(rows_of(group.rank())).sum() / 2).backward();
      expect_means(net, group);
    }
  });
}

TEST(TorchReduction, NamesWhatWasUnfrozen) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    torch::manual_seed(6);
    Linear linear(3, 2);
    linear->bias.requires_grad_(false);
    WrappedLinear net(linear, group, {.strategy = Strategy::kTorch});
    linear->bias.requires_grad_(true);
    expect_sentence([&] { net.forward(rows_of(0)); }, {"bias was unfrozen since"});
  });
}

}  // namespace
}  // namespace flashstep
