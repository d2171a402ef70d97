// What programs do with fully sharded units beside a training step: metrics, penalties, tensors
// that units hand on. It gives what one process gives, or a sentence.
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "flashstep/error.h"
#include "flashstep/fully_sharded.h"
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

constexpr int64_t kBesideWidth = 8;

enum class Beside { kNothing, kSkips, kReturnsWeight, kThrows };

struct BesideBlock : torch::nn::Module {
  Linear up{register_module("up", Linear(kBesideWidth, kBesideWidth))};
  Beside beside = Beside::kNothing;
  // The memory is handed on as it came.
  std::vector<Tensor> forward(const Tensor& x, const Tensor& memory) {
    if (beside == Beside::kThrows) throw UserError("this block throws");
    if (beside == Beside::kSkips) return {x, memory};
    const Tensor y = torch::tanh(up(x)) + memory;
    return beside == Beside::kReturnsWeight ? std::vector{y, up->weight.t()}
                                            : std::vector{y, memory};
  }
};

// A convolution of the root over channels, each with its own 2 weights, and 3 blocks.
struct BesideNet : torch::nn::Module {
  torch::nn::Conv1d mix{register_module(
      "mix", torch::nn::Conv1d(torch::nn::Conv1dOptions(kBesideWidth, kBesideWidth, 2)
                                   .groups(kBesideWidth)
                                   .bias(false)))};
  torch::nn::ModuleList blocks{register_module("blocks", torch::nn::ModuleList())};
  BesideNet() {
    for (int i = 0; i < 3; ++i) blocks->push_back(std::make_shared<BesideBlock>());
  }
  BesideBlock& block(size_t i) { return *blocks[i]->as<BesideBlock>(); }
  // (rows, width, length)
  Tensor forward(const Tensor& x) {
    const Tensor encoded = mix(x).mean(2);
    std::vector<Tensor> y = {encoded, encoded * 2};
    for (size_t i = 0; i < blocks->size(); ++i) y = run(block(i), y[0], y[1]);
    return y[0];
  }
};

std::shared_ptr<BesideNet> make_beside() {
  torch::manual_seed(5);
  return std::make_shared<BesideNet>();
}

Tensor beside_rows(int64_t step, int rank) {
  return torch::arange(2 * kBesideWidth * 4)
      .add(7 * step + 3 * rank)
      .sin()
      .view({2, kBesideWidth, 4});
}

// Comes behind each backward, also the last one before the optimizer's step.
enum class Metric { kNone, kEnds, kThrows };

// What it throws is caught: the program goes on.
void measure(FullyShardedDataParallel<BesideNet>& model, int64_t step, Metric metric) {
  if (metric == Metric::kEnds) {
    EXPECT_TRUE(model(beside_rows(step, 0)).mean().requires_grad());
  }
  if (metric != Metric::kThrows) return;
  model.module()->block(1).beside = Beside::kThrows;
  for (const bool graph : {true, false}) {
    const torch::AutoGradMode mode(graph);
    expect_sentence([&] { model(beside_rows(step, 0)); }, {"this block throws"});
  }
  model.module()->block(1).beside = Beside::kNothing;
}

// Steps of the model against those of one process on all ranks' rows.
void expect_same_steps(FullyShardedDataParallel<BesideNet>& model, BesideNet& alone,
                       const Group& group, Metric metric = Metric::kNone) {
  torch::optim::SGD own(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD single(alone.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int64_t step = 0; step < 3; ++step) {
    own.zero_grad();
    single.zero_grad();
    for (int rank = 0; rank < group.world_size(); ++rank)
      (alone.forward(beside_rows(step, rank)).square().sum() / group.world_size()).backward();
    for (int pass = 0; pass < 2; ++pass) {
      (model(beside_rows(step, group.rank())).square().sum() / 2).backward();
      measure(model, step + 1, metric);
    }
    own.step();
    single.step();
  }
  const auto expected = alone.named_parameters();
  for (const auto& [name, value] : model.gather_full_parameters())
    EXPECT_TRUE(close(value, expected[name], 1e-5, 1e-5)) << name;
}

TEST(UnitBeside, AForwardBetweenBackwardAndStep) {
  for (const int world_size : {1, 2, 3}) {
    run_ranks(world_size, [](const Environment& environment) {
      const Group group(environment);
      for (const bool reshard : {true, false}) {
        SCOPED_TRACE(reshard);
        for (const Metric metric : {Metric::kEnds, Metric::kThrows}) {
          FullyShardedDataParallel model(make_beside(), group, {.reshard_after_forward = reshard});
          expect_same_steps(model, *make_beside(), group, metric);
        }
      }
    });
  }
}

TEST(UnitBeside, UnitsHandOnWhatTheyWereGiven) {
  for (const int world_size : {1, 2}) {
    run_ranks(world_size, [](const Environment& environment) {
      const Group group(environment);
      const auto alone = make_beside();
      FullyShardedDataParallel model(make_beside(), group);
      for (BesideNet* net : {alone.get(), model.module().get()})
        net->block(1).beside = Beside::kSkips;
      expect_same_steps(model, *alone, group);
      EXPECT_EQ(model.units().gathered_bytes(), 0);
    });
  }
}

TEST(UnitBeside, AWeightThatIsReturnedIsNamed) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    FullyShardedDataParallel model(make_beside(), group);
    model.module()->block(1).beside = Beside::kReturnsWeight;
    for (const bool graph : {true, false}) {
      const torch::AutoGradMode mode(graph);
      expect_sentence([&] { model(beside_rows(0, group.rank())); },
                      {"[fully sharded]", "blocks.1", "one of its parameters"});
    }
    model.module()->block(1).beside = Beside::kNothing;
    expect_same_steps(model, *make_beside(), group);
  });
}

TEST(UnitBeside, AGraphOfShardsIsNamed) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    FullyShardedDataParallel model(make_beside(), group);
    {
      Tensor penalty = torch::zeros({});
      for (const Tensor& parameter : model.parameters())
        penalty = penalty + parameter.square().sum();
      expect_sentence([&] { model(beside_rows(0, group.rank())); },
                      {"[fully sharded]", "forwards of their units alone", "NoGradGuard"});
    }
    {
      const torch::NoGradGuard no_grad;
      for (const Tensor& parameter : model.parameters()) parameter.square().sum();
    }
    expect_same_steps(model, *make_beside(), group);
  });
}

TEST(UnitBeside, OfASubsetAutogradGradIsOfInputs) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    FullyShardedDataParallel model(make_beside(), group);
    const Tensor x = beside_rows(0, group.rank()).requires_grad_();
    expect_sentence(
        [&] { torch::autograd::grad({model(x).sum()}, {model.module()->block(2).up->weight}); },
        {"[fully sharded]", "torch::autograd::grad", "blocks.2.up.weight"});
    model.forget_step();
    const auto alone = make_beside();
    const Tensor other = beside_rows(0, group.rank()).requires_grad_();
    const Tensor expected = torch::autograd::grad({alone->forward(other).sum()}, {other})[0];
    EXPECT_TRUE(close(torch::autograd::grad({model(x).sum()}, {x})[0], expected, 1e-6, 1e-5));
    expect_same_steps(model, *alone, group);
  });
}

TEST(UnitBeside, NamesWhatCannotBe) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto frozen = make_beside();
    frozen->block(0).up->weight.requires_grad_(false);
    FullyShardedDataParallel model(frozen, group);
    frozen->block(0).up->weight.requires_grad_(true);
    expect_sentence([&] { model(beside_rows(0, group.rank())); },
                    {"[fully sharded]", "blocks.0.up.weight", "frozen when it was wrapped"});
    {
      const torch::NoGradGuard no_grad;  // past run(): its weight has one dimension more
      EXPECT_ANY_THROW(frozen->mix(beside_rows(0, 0)));
    }
    expect_sentence(
        [&] {
          FullyShardedDataParallel of_integers(make_beside(), group,
                                               {.compute_dtype = torch::kInt});
        },
        {"[fully sharded]", "floating-point compute_dtype", "Int"});
  });
}

}  // namespace
}  // namespace flashstep
