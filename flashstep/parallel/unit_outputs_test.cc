// Units and roots with an output that their own weights do not lead to: its gradient may come when
// all of theirs are there.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "flashstep/fully_sharded.h"
#include "flashstep/ops.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"

namespace flashstep {
namespace {

using testing::close;
using testing::run_ranks;
using torch::Tensor;

constexpr int64_t kOutputWidth = 8;

struct SkippingBlock : torch::nn::Module {
  torch::nn::Linear up{register_module("up", torch::nn::Linear(kOutputWidth, kOutputWidth))};
  torch::nn::Linear mix{nullptr};  // or frozen
  explicit SkippingBlock(bool mixes) {
    if (!mixes) return;
    mix = register_module("mix", torch::nn::Linear(kOutputWidth, kOutputWidth));
    for (const Tensor& parameter : mix->parameters()) parameter.set_requires_grad(false);
  }
  std::vector<Tensor> forward(const Tensor& x) {
    const Tensor skip = torch::tanh(mix ? mix(x) : x);
    return {up(skip), skip};
  }
};

struct SkippingNet : torch::nn::Module {
  torch::nn::ModuleList blocks{register_module("blocks", torch::nn::ModuleList())};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(kOutputWidth, 4))};
  bool recomputes = false;

  explicit SkippingNet(bool mixes) {
    for (int i = 0; i < 3; ++i) blocks->push_back(std::make_shared<SkippingBlock>(mixes));
  }
  std::vector<Tensor> call(size_t i, const Tensor& x) {
    const auto once = [this, i](const std::vector<Tensor>& given) {
      return run(*blocks[i]->as<SkippingBlock>(), given.front());
    };
    return recomputes ? recompute(once, {x}) : once({x});
  }
  // Both outputs are the root's. Block 0 is used twice.
  std::pair<Tensor, Tensor> forward(const Tensor& rows) {
    Tensor x = rows.to(head->weight.scalar_type()), skips = torch::zeros_like(x);
    for (const size_t i : {0, 1, 2, 0}) {
      const std::vector<Tensor> outputs = call(i, x);
      x = outputs[0];
      skips = skips + outputs[1];
    }
    const Tensor hidden = torch::tanh(x + skips);
    return {head(hidden), hidden};
  }
};

std::shared_ptr<SkippingNet> make_skipping(bool mixes) {
  torch::manual_seed(6);
  return std::make_shared<SkippingNet>(mixes);
}

Tensor skipping_rows(int64_t step, int rank) {
  return torch::arange(2 * kOutputWidth).add(7 * step + 3 * rank).sin().view({2, kOutputWidth});
}

template <typename M>
Tensor skipping_loss(M& model, const Tensor& rows) {
  const auto [logits, hidden] = model.forward(rows);
  return logits.square().sum() + hidden.sum();
}

// Steps against those of one process on all ranks' rows: each through two forwards, by one backward
// or by one of each.
void expect_skipping_steps(const Group& group, bool mixes, bool recomputes, bool in_backward,
                           bool together, const FullyShardOptions& options) {
  const auto alone = make_skipping(mixes), net = make_skipping(mixes);
  net->recomputes = recomputes;
  FullyShardedDataParallel model(net, group, options);
  const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9);
  torch::optim::SGD own(model.parameters(), sgd), single(alone->parameters(), sgd);
  if (in_backward) model.step_in_backward(own);
  for (int64_t step = 0; step < 3; ++step) {
    own.zero_grad();
    single.zero_grad();
    for (int rank = 0; rank < group.world_size(); ++rank) {
      for (const int64_t rows : {step, step + 5})
        (skipping_loss(*alone, skipping_rows(rows, rank)) / group.world_size()).backward();
    }
    const Tensor first = skipping_loss(model, skipping_rows(step, group.rank()));
    const Tensor second = skipping_loss(model, skipping_rows(step + 5, group.rank()));
    if (together) {
      (first + second).backward();
    } else {
      first.backward();
      second.backward();
    }
    EXPECT_EQ(model.units().gathered_bytes(), 0);
    own.step();
    single.step();
  }
  const auto expected = alone->named_parameters();
  for (const auto& [name, value] : model.gather_full_parameters())
    EXPECT_TRUE(close(value, expected[name], 1e-5, 1e-5)) << name;
}

// Where the dtype changes, autograd completes the gradients of each call by themselves.
std::vector<FullyShardOptions> skipping_options() {
  return {{},
          {.reshard_after_forward = false},
          {.compute_dtype = torch::kDouble},
          {.compute_dtype = torch::kDouble, .reshard_after_forward = false}};
}

TEST(UnitOutputs, OwnWeightsNeedNotLeadToAll) {
  for (const int world_size : {1, 2}) {
    run_ranks(world_size, [](const Environment& environment) {
      const Group group(environment);
      for (const bool mixes : {false, true}) {
        for (const bool recomputes : {false, true}) {
          for (const FullyShardOptions& options : skipping_options()) {
            SCOPED_TRACE(::testing::Message()
                         << mixes << recomputes << options.compute_dtype.has_value()
                         << options.reshard_after_forward);
            expect_skipping_steps(group, mixes, recomputes, /*in_backward=*/false,
                                  /*together=*/true, options);
            expect_skipping_steps(group, mixes, recomputes, /*in_backward=*/false,
                                  /*together=*/false, options);
            expect_skipping_steps(group, mixes, recomputes, /*in_backward=*/true,
                                  /*together=*/true, options);
          }
        }
      }
    });
  }
}

}  // namespace
}  // namespace flashstep
