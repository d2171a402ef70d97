#include <stdexcept>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "flashstep/error.h"
#include "flashstep/measure/cpu_memory.h"
#include "flashstep/ops.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::expect_sentence;

struct Net : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(6, 24))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(24, 6))};
  torch::nn::Dropout dropout{register_module("dropout", torch::nn::Dropout(0.4))};
  int calls = 0;
  Tensor forward(const Tensor& x) {
    ++calls;
    return second(dropout(at::tanh(first(x))));
  }
};

std::shared_ptr<Net> make_net() {
  torch::manual_seed(7);
  return std::make_shared<Net>();
}

Tensor input(bool wants_gradient = true) {
  return at::sin(at::arange(30, at::kFloat)).view({5, 6}).requires_grad_(wants_gradient);
}

// The loss, the gradients of parameters and input, and a random number drawn afterwards.
std::vector<Tensor> step(Net& net, bool recomputes, int times = 1) {
  torch::manual_seed(11);
  net.zero_grad();
  const Tensor x = input();
  Tensor y = x;
  for (int i = 0; i < times; ++i) {
    const auto call = [&](const Tensor& t) { return net.forward(t); };
    y = recomputes ? recompute(call, y) : call(y);
  }
  const Tensor between = at::rand({3});  // backward must not go on from here
  const Tensor loss = (y * between.sum()).pow(2).sum();
  loss.backward();
  std::vector<Tensor> results = {loss.detach(), x.grad(), at::rand({3})};
  for (const Tensor& parameter : net.parameters()) results.push_back(parameter.grad().clone());
  return results;
}

TEST(Recompute, GivesTheSameBitsWithDropout) {
  const auto net = make_net();
  for (const int times : {1, 3}) {
    net->calls = 0;
    const auto expected = step(*net, false, times);
    EXPECT_EQ(net->calls, times);
    const auto got = step(*net, true, times);
    EXPECT_EQ(net->calls, 3 * times);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(testing::same_bits(got[i], expected[i])) << times << ", " << i;
    }
  }
}

TEST(Recompute, NestsAndLeavesNothingOfTheInside) {
  const auto net = make_net();
  net->eval();
  const Tensor x = input();
  net->forward(x).pow(2).sum().backward();
  const Tensor expected = net->first->weight.grad().clone();
  net->zero_grad();
  const auto inner = [&](const Tensor& t) { return net->forward(t); };
  const auto outer = [&](const Tensor& t) { return recompute(inner, t) * 1; };
  recompute(outer, x).pow(2).sum().backward();
  EXPECT_TRUE(testing::same_bits(net->first->weight.grad(), expected));

  const auto kept = [&](bool recomputes) {
    const Tensor large = at::ones({2000, 6}).requires_grad_();
    const measure::AllocatedBytes allocated;
    const Tensor y = recomputes ? recompute(inner, large) : inner(large);
    return allocated.now();
  };
  constexpr int64_t kOutput = 4 * 2000 * 6, kInside = 4 * 2000 * 24;
  // The state of the CPU's generator has 5,056 bytes.
  EXPECT_LT(kept(true), kOutput + 6000);
  EXPECT_GE(kept(false), kOutput + kInside);
}

TEST(Recompute, TakesSeveralTensorsOfAllKinds) {
  const Tensor ids = at::arange(4), table = at::rand({5, 3}).requires_grad_();
  const Tensor factor = at::rand({3});
  const auto call = [&](const std::vector<Tensor>& in) {
    const Tensor rows = in[1].index_select(0, in[0]);
    return std::vector<Tensor>{rows * in[2], rows.sum(), in[0] + 1};
  };
  const auto run = [&](bool recomputes) {
    table.mutable_grad() = Tensor();
    const std::vector<Tensor> inputs = {ids, table, factor};
    const auto outputs = recomputes ? recompute(call, inputs) : call(inputs);
    (outputs[0].pow(2).sum() + 3 * outputs[1]).backward();
    EXPECT_FALSE(outputs[2].requires_grad());
    return std::pair(outputs[2], table.grad());
  };
  const auto expected = run(false), got = run(true);
  EXPECT_TRUE(got.first.equal(expected.first));
  EXPECT_TRUE(testing::same_bits(got.second, expected.second));
  // Only one of the outputs is used.
  table.mutable_grad() = Tensor();
  recompute(call, {ids, table, factor})[1].backward();
  EXPECT_EQ(table.grad().sum().item<float>(), 4 * 3);
}

TEST(Recompute, WhatNobodyUsedGetsNoGradient) {
  const Tensor used = at::rand({3}).requires_grad_(), unused = at::rand({3}).requires_grad_();
  const auto call = [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{in[0] * used, in[0] * unused};
  };
  recompute(call, {at::ones({3})})[0].sum().backward();
  EXPECT_TRUE(used.grad().defined());
  EXPECT_FALSE(unused.grad().defined());
  const Tensor loss = recompute(call, {at::ones({3})})[0].sum();
  expect_sentence([&] { loss.backward({}, true, /*create_graph=*/true); }, {"create_graph"});
}

TEST(Recompute, ParametersGetGradientsWithoutAnInputThatWantsOne) {
  const auto net = make_net();
  net->eval();
  const auto call = [&](const Tensor& t) { return net->forward(t); };
  recompute(call, input(false)).sum().backward();
  EXPECT_TRUE(net->first->weight.grad().defined());
  // Nothing wants one: backward has nothing to do, and says nothing.
  const auto none = [](const Tensor& t) { return t * 2; };
  EXPECT_NO_THROW(recompute(none, input(false)).sum().backward());
}

TEST(Recompute, CallsOnceWithoutAGraph) {
  const auto net = make_net();
  const at::NoGradGuard no_grad;
  const Tensor y = recompute([&](const Tensor& t) { return net->forward(t); }, input());
  EXPECT_EQ(net->calls, 1);
  EXPECT_FALSE(y.requires_grad());
}

// A weight that is cast inside and outside of the call: the cast of the call without a graph must
// not be taken for the other's.
TEST(Recompute, HonoursAutocastAndTiedWeights) {
  const auto net = make_net();
  net->eval();
  const auto gradients = [&](bool recomputes) {
    net->zero_grad();
    Tensor loss;
    {
      const AutocastGuard autocast(at::kCPU, at::kBFloat16);
      const auto call = [&](const Tensor& t) {
        const Tensor out = net->forward(t);
        EXPECT_EQ(out.scalar_type(), at::kBFloat16) << "in backward, too";
        return out;
      };
      const Tensor y = recomputes ? recompute(call, input()) : call(input());
      EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
      loss = net->first(y).to(at::kFloat).pow(2).sum();
    }
    loss.backward();  // outside of the guard, as LibTorch recommends
    return std::vector<Tensor>{net->first->weight.grad().clone(),
                               net->second->weight.grad().clone()};
  };
  const auto expected = gradients(false), got = gradients(true);
  for (size_t i = 0; i < 2; ++i) {
    const double largest = expected[i].abs().max().item<double>();
    EXPECT_TRUE(testing::close(got[i], expected[i], 0.02 * largest)) << i;
  }
}

TEST(Recompute, RefusesWhatWouldBeWrong) {
  const auto net = make_net();
  net->eval();
  const auto call = [&](const Tensor& t) { return net->forward(t); };
  const Tensor x = input();
  expect_sentence([&] { torch::autograd::grad({recompute(call, x).sum()}, {x}); },
                  {"[recompute]", "torch::autograd::grad"});
  int calls = 0;
  const auto other = [&](const Tensor& t) {
    return ++calls == 1 ? t * 2 : (t * 2).narrow(0, 0, 1);
  };
  expect_sentence([&] { recompute(other, x).sum().backward(); },
                  {"[recompute]", "output 0", "[5, 6]", "[1, 6]"});
  // An input that was written meanwhile: LibTorch's own check.
  const Tensor written = input(false).clone();
  const Tensor y = recompute(call, written);
  written.mul_(2);
  EXPECT_THROW(y.sum().backward(), std::exception);
  expect_sentence([&] { recompute([](const Tensor& t) { return t.mul_(2); }, input(false)); },
                  {"[recompute]", "leaves its inputs"});
  expect_sentence([&] { recompute([](const Tensor&) { return Tensor(); }, x); },
                  {"[recompute]", "got none"});
  expect_sentence([&] { recompute(call, Tensor()); }, {"[recompute]", "undefined"});
}

TEST(Recompute, AnExceptionLeavesTheGeneratorsAlone) {
  int calls = 0;
  const auto call = [&](const Tensor& t) {
    const Tensor noisy = t * at::rand({1});
    if (++calls == 2) throw std::runtime_error("in the second call");
    return noisy;
  };
  torch::manual_seed(5);
  const Tensor y = recompute(call, input());
  at::rand({3});
  EXPECT_THROW(y.sum().backward(), std::exception);
  const Tensor after = at::rand({2});
  torch::manual_seed(5);
  at::rand({1});
  at::rand({3});
  EXPECT_TRUE(testing::same_bits(after, at::rand({2})));
}

}  // namespace
}  // namespace flashstep
