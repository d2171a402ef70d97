// Fully sharded modules against a single process, and the mistakes that must become sentences.
#include "flashstep/fully_sharded.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/normalization.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/parallel/test_hard_net.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::close;
using testing::expect_sentence;
using testing::run_ranks;
using testing::same_bits;
using torch::Tensor;

TEST(FullySharded, TrainsAsASingleProcessDoes) {
  constexpr int64_t kSteps = 20;
  for (const int world_size : {1, 2, 3, 4}) {
    run_ranks(world_size, [](const Environment& environment) {
      const Group group(environment);
      for (const ShardCase& c : shard_cases()) {
        SCOPED_TRACE(c.name);
        const auto alone = train_alone(*make_hard_net(), kSteps);
        const auto net = make_hard_net();
        net->recomputed = c.recomputed;
        FullyShardedDataParallel model(net, group, c.options);
        torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
        train_sharded(model, optimizer, kSteps);
        for (const auto& [name, tensor] : model.gather_full_parameters())
          EXPECT_TRUE(close(tensor, alone.at(name), 2e-5, 1e-4)) << name;
        // What every rank has whole has the same bits everywhere.
        if (c.options.shard) continue;
        const Tensor gain = net->block(0).gain.detach().flatten().clone();
        Tensor first = gain.clone();
        group.broadcast(first, 0);
        EXPECT_TRUE(same_bits(gain, first));
      }
    });
  }
}

TEST(FullySharded, KeepsAShardOfEachParameter) {
  run_ranks(3, [](const Environment& environment) {
    const Group group(environment);
    const auto net = make_hard_net();
    const Tensor before = net->words.detach().clone();
    void* const identity = net->words.unsafeGetTensorImpl();
    FullyShardedDataParallel model(net, group);
    EXPECT_EQ(net->words.unsafeGetTensorImpl(), identity);
    // 55 elements in parts of 20: 20, 20 and 15.
    EXPECT_EQ(net->words.numel(), group.rank() < 2 ? 20 : 15);
    EXPECT_EQ(net->words.dim(), 3);
    EXPECT_TRUE(net->words.requires_grad());
    EXPECT_FALSE(net->fixed.requires_grad());
    EXPECT_TRUE(same_bits(
        net->words.detach().flatten(),
        before.flatten().slice(0, group.rank() * 20, group.rank() * 20 + net->words.numel())));
    EXPECT_EQ(net->norm.sizes(), at::IntArrayRef{kNetWidth}) << "a vector: whole on every rank";
    EXPECT_EQ(model.named_parameters().front().key(), "module.words");
    // Whole weights of one model go into another one, on any number of ranks.
    auto whole = model.gather_full_parameters();
    const auto words = std::find_if(whole.begin(), whole.end(),
                                    [](const auto& named) { return named.first == "words"; });
    ASSERT_NE(words, whole.end());
    EXPECT_TRUE(same_bits(words->second, before));
    for (auto& [name, tensor] : whole) tensor.add_(1);
    const auto version = net->words._version();
    model.load_full_parameters(whole);
    EXPECT_GT(net->words._version(), version) << "copies of it are stale";
    EXPECT_TRUE(
        same_bits(net->words.detach().flatten(),
                  (before + 1)
                      .flatten()
                      .slice(0, group.rank() * 20, group.rank() * 20 + net->words.numel())));
    expect_sentence([&] { model.load_full_parameters({}); }, {"a tensor for", "got none"});
    words->second = torch::zeros({2, 2});
    expect_sentence([&] { model.load_full_parameters(whole); }, {"words", "of shape [11, 5]"});
  });
}

// Neighbours that one product takes (ops/compute_copy.h).
TEST(FullySharded, TensorsOfAShapeLieTogether) {
  struct Gated : torch::nn::Module {
    torch::nn::LinearOptions out{torch::nn::LinearOptions(8, 16).bias(false)};
    torch::nn::Linear up{register_module("up", torch::nn::Linear(out))};
    torch::nn::Linear down{
        register_module("down", torch::nn::Linear(torch::nn::LinearOptions(16, 8).bias(false)))};
    torch::nn::Linear gate{register_module("gate", torch::nn::Linear(out))};
    Tensor forward(const Tensor& x) {
      EXPECT_EQ(up->weight.data_ptr<float>() + up->weight.numel(), gate->weight.data_ptr<float>());
      return down(up(x) * gate(x));
    }
  };
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    FullyShardedDataParallel model(std::make_shared<Gated>(), group);
    model(torch::ones({2, 8})).sum().backward();
  });
}

// Units ahead of the one that computes are gathered, and no more lie in memory.
TEST(FullySharded, HoldsTwoUnitsAtATime) {
  struct Deep : torch::nn::Module {
    torch::nn::ModuleList layers{register_module("layers", torch::nn::ModuleList())};
    ShardedUnits* units = nullptr;
    int64_t most = 0;
    Deep() {
      for (int i = 0; i < 6; ++i) {
        layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(16, 16).bias(false)));
      }
    }
    Tensor forward(Tensor x) {
      for (int i = 0; i < 6; ++i) {
        x = run(*layers[i]->as<torch::nn::LinearImpl>(), x).relu();
        if (x.requires_grad()) {
          x.register_hook(
              [this](const Tensor&) { most = std::max(most, units->gathered_bytes()); });
        }
        most = std::max(most, units->gathered_bytes());
      }
      return x;
    }
  };
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = std::make_shared<Deep>();
    FullyShardedDataParallel model(net, group);
    net->units = &model.units();
    for (int step = 0; step < 3; ++step) {
      model(torch::ones({2, 16})).sum().backward();
      EXPECT_EQ(model.units().gathered_bytes(), 0);
    }
    EXPECT_GT(net->most, 0);
    EXPECT_LE(net->most, 2 * 16 * 16 * 4);
    net->most = 0;
    const torch::NoGradGuard no_grad;
    model(torch::ones({2, 16}));
    EXPECT_EQ(model.units().gathered_bytes(), 0);
    EXPECT_LE(net->most, 2 * 16 * 16 * 4);
  });
}

TEST(FullySharded, ComputesInAnotherDtype) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto alone = train_alone(*make_hard_net(), 10);
    const auto net = make_hard_net();
    FullyShardedDataParallel model(net, group, {.compute_dtype = torch::kBFloat16});
    torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
    for (int64_t step = 0; step < 10; ++step) {
      const Tensor ids = rows_of_rank(ids_of(step), group);
      const Tensor logits = model(ids);
      EXPECT_EQ(logits.scalar_type(), torch::kBFloat16);
      loss_of_logits(logits, ids).backward();
      EXPECT_EQ(net->words.grad().scalar_type(), torch::kFloat);
      EXPECT_EQ(net->words.scalar_type(), torch::kFloat);
      model.clip_grad_norm(kNetClip);
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const auto& [name, tensor] : model.gather_full_parameters()) {
      EXPECT_EQ(tensor.scalar_type(), torch::kFloat);
      EXPECT_TRUE(close(tensor, alone.at(name), 0.11)) << name;
    }
  });
}

// The gradients of one backward over all rows.
std::map<std::string, Tensor> gradients_alone(int64_t backwards) {
  const auto net = make_hard_net();
  for (int64_t i = 0; i < backwards; ++i)
    loss_of_logits(net->forward(ids_of(i)), ids_of(i)).backward();
  std::map<std::string, Tensor> result;
  for (const auto& item : net->named_parameters()) result[item.key()] = item.value().grad();
  return result;
}

void expect_gradients(FullyShardedDataParallel<HardNet>& model, int64_t backwards) {
  const auto expected = gradients_alone(backwards);
  // As weights, which can be gathered.
  const torch::NoGradGuard no_grad;
  const auto kept = model.gather_full_parameters();
  for (const auto& parameter : model.parameters()) {
    const Tensor gradient = parameter.grad();
    EXPECT_EQ(gradient.defined(), parameter.requires_grad());
    if (gradient.defined()) {
      EXPECT_EQ(gradient.sizes(), parameter.sizes());
      parameter.copy_(gradient);
    }
  }
  for (const auto& [name, tensor] : model.gather_full_parameters()) {
    if (!expected.at(name).defined()) continue;
    EXPECT_TRUE(close(tensor, expected.at(name), 1e-5, 1e-4)) << name;
  }
  model.load_full_parameters(kept);
}

TEST(FullySharded, AddsUpBackwardPasses) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    FullyShardedDataParallel model(make_hard_net(), group);
    for (int64_t i = 0; i < 3; ++i) {
      const Tensor ids = rows_of_rank(ids_of(i), group);
      loss_of_logits(model(ids), ids).backward();
    }
    expect_gradients(model, 3);
    for (const Tensor& parameter : model.parameters()) parameter.mutable_grad().reset();
    // Two forwards, and one backward through both.
    const Tensor first = rows_of_rank(ids_of(0), group), second = rows_of_rank(ids_of(1), group);
    const Tensor a = loss_of_logits(model(first), first);
    {
      const torch::NoGradGuard no_grad;  // an evaluation in between
      model(second);
    }
    const Tensor b = loss_of_logits(model(second), second);
    (a + b).backward();
    expect_gradients(model, 2);
    // zero_grad without set_to_none keeps the memory.
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.0));
    optimizer.zero_grad(/*set_to_none=*/false);
    loss_of_logits(model(first), first).backward();
    expect_gradients(model, 1);
  });
}

TEST(FullySharded, GivesGradientsOfInputsAlone) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    struct Plain : torch::nn::Module {
      torch::nn::ModuleList list{register_module("list", torch::nn::ModuleList())};
      Plain() { list->push_back(torch::nn::Linear(4, 3)); }
      Tensor forward(const Tensor& x) { return run(*list[0]->as<torch::nn::LinearImpl>(), x); }
    };
    torch::manual_seed(1);
    const auto net = std::make_shared<Plain>();
    const Tensor weight = net->list[0]->as<torch::nn::LinearImpl>()->weight.detach().clone();
    FullyShardedDataParallel model(net, group);
    const Tensor x = torch::ones({2, 4}).requires_grad_();
    const Tensor y = model(x).sum();
    const Tensor gradient = torch::autograd::grad({y}, {x})[0];
    EXPECT_TRUE(close(gradient[0], weight.sum(0), 1e-6));
    for (const Tensor& parameter : model.parameters()) EXPECT_FALSE(parameter.grad().defined());
    EXPECT_EQ(model.units().gathered_bytes(), 0);
    model(x).sum().backward();
    EXPECT_TRUE(model.parameters()[0].grad().defined());
  });
}

TEST(FullySharded, CallsASequentialUnitByUnit) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    struct Stack : torch::nn::Module {
      torch::nn::Sequential stack{register_module(
          "stack", torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::Linear(6, 3)))};
      Tensor forward(const Tensor& x) { return run(*stack, x); }
    };
    torch::manual_seed(2);
    const auto net = std::make_shared<Stack>();
    const Tensor expected = net->stack->forward(torch::ones({2, 4}));
    FullyShardedDataParallel model(net, group);
    EXPECT_EQ(model.units().unit_count(), 3u);
    const Tensor y = model(torch::ones({2, 4}));
    EXPECT_TRUE(same_bits(y, expected));
    y.sum().backward();
    for (const Tensor& parameter : model.parameters()) EXPECT_TRUE(parameter.grad().defined());
  });
}

TEST(FullySharded, TakesASequentialAsItIs) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    torch::manual_seed(2);
    torch::nn::Sequential stack(torch::nn::Linear(4, 6), torch::nn::Tanh(),
                                torch::nn::Linear(6, 3));
    const Tensor x = torch::ones({2, 4});
    const Tensor expected = stack->forward(x);
    expected.sum().backward();
    const Tensor gradient = stack[0]->as<torch::nn::Linear>()->weight.grad().clone();
    stack->zero_grad();
    FullyShardedDataParallel model(stack, group);
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      const Tensor y = model(x);
      EXPECT_TRUE(same_bits(y, expected));
      y.sum().backward();
    }
    const Tensor own = stack[0]->as<torch::nn::Linear>()->weight.grad().flatten();
    EXPECT_TRUE(
        close(own, gradient.flatten().slice(0, 12 * group.rank(), 12 * group.rank() + 12), 1e-6));
  });
}

// --- mistakes ---------------------------------------------------------------------------------

TEST(FullySharded, NamesAUnitThatWasCalledWithoutRun) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = make_hard_net();
    FullyShardedDataParallel model(net, group);
    net->is_past = true;
    expect_sentence([&] { model(ids_of(0)); }, {"blocks.1", "flashstep::run"});
    net->is_past = false;
    // Nothing is left of it.
    const Tensor ids = rows_of_rank(ids_of(0), group);
    loss_of_logits(model(ids), ids).backward();
    expect_gradients(model, 1);
  });
}

TEST(FullySharded, AFailureOfTheMachineIsNoMistake) {
  struct Full : torch::nn::Module {
    torch::nn::Linear unit{register_module("unit", torch::nn::Linear(4, 4))};
    Tensor forward(const Tensor& /*x*/) { C10_THROW_ERROR(OutOfMemoryError, "no room"); }
  };
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    FullyShardedDataParallel model(std::make_shared<Full>(), group, {.units = {"unit"}});
    EXPECT_THROW(model(torch::ones({2, 4})), c10::OutOfMemoryError);
  });
}

TEST(FullySharded, GoesOnAfterAnException) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = make_hard_net();
    FullyShardedDataParallel model(net, group);
    const Tensor ids = rows_of_rank(ids_of(0), group);
    net->block(2).throws = true;
    expect_sentence([&] { model(ids); }, {"this block throws"});
    net->block(2).throws = false;
    EXPECT_EQ(model.units().gathered_bytes(), 0);
    // In the middle of a backward.
    const Tensor y = model(ids);
    const Tensor loss = loss_of_logits(y, ids);
    bool throws = true;
    y.register_hook([&](const Tensor&) {
      if (throws) throw UserError("thrown in backward");
    });
    EXPECT_ANY_THROW(loss.backward({}, /*retain_graph=*/true));
    model.forget_step();
    EXPECT_EQ(model.units().gathered_bytes(), 0);
    throws = false;
    loss_of_logits(model(ids), ids).backward();
    expect_gradients(model, 1);
  });
}

TEST(FullySharded, RefusesABackwardThatWasBrokenOff) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto net = make_hard_net();
    FullyShardedDataParallel model(net, group);
    const Tensor ids = rows_of_rank(ids_of(0), group);
    net->block(0).gain.register_hook([](const Tensor&) { throw UserError("in the middle"); });
    EXPECT_ANY_THROW(loss_of_logits(model(ids), ids).backward());
    expect_sentence([&] { model(ids); }, {"broken off", "forget_step()"});
    model.forget_step();
    model(ids);
  });
}

TEST(FullySharded, NamesAParameterWithoutGradient) {
  run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    struct Idle : torch::nn::Module {
      Tensor used = register_parameter("used", torch::ones({4, 4}));
      Tensor idle = register_parameter("idle", torch::ones({4, 4}));
      Tensor forward(const Tensor& x) { return torch::linear(x, used); }
    };
    const auto net = std::make_shared<Idle>();
    FullyShardedDataParallel model(net, group);
    expect_sentence([&] { model(torch::ones({2, 4})).sum().backward(); }, {"idle", "freeze"});
    EXPECT_TRUE(net->idle.grad().isnan().all().item<bool>()) << "nobody trains on with it";
  });
}

TEST(FullySharded, RanksThatDifferAreNamed) {
  run_ranks(3, [](const Environment& environment) {
    const Group group(environment);
    const auto expect_refused = [&](FullyShardOptions options,
                                    const std::vector<std::string>& words) {
      const auto net = make_hard_net();
      expect_sentence([&] { FullyShardedDataParallel(net, group, options); }, words);
    };
    const bool differs = group.rank() == 2;
    FullyShardOptions options;
    if (differs) options.compute_dtype = torch::kBFloat16;
    expect_refused(options, {"compute_dtype", "not given on rank 0", "BFloat16 on rank 2"});
    options = {};
    options.units = {differs ? "blocks.1" : "blocks.0"};
    expect_refused(options, {"unit blocks.0 on rank 0", "unit blocks.1 on rank 2"});
    options = {};
    options.shard = [differs](const std::string& name, const Tensor& t) {
      return t.dim() >= 2 && !(differs && name == "words");
    };
    expect_refused(options, {"words", "not divided", "rank 2"});
  });
}

TEST(FullySharded, RefusesWhatItCannotDivide) {
  const Group group{Environment()};
  const auto net = make_hard_net();
  expect_sentence([&] { FullyShardedDataParallel(decltype(make_hard_net())(), group); },
                  {"expected a module", "null"});
  expect_sentence([&] { FullyShardedDataParallel(net, group, {.units = {"layers.0"}}); },
                  {"units by the names of modules", "layers.0"});
  expect_sentence(
      [&] {
        FullyShardedDataParallel(net, group, {.units = {"blocks.0", "blocks.0"}});
      },
      {"once", "twice"});
  struct Whole : torch::nn::Module {
    Tensor count = register_parameter("count", torch::ones({2, 2}, torch::kLong), false);
  };
  expect_sentence([&] { ShardedModule(*std::make_shared<Whole>(), group, {}); },
                  {"floating-point", "count"});
  FullyShardedDataParallel model(net, group);
  expect_sentence([&] { FullyShardedDataParallel(net, group); }, {"fully sharded already"});
  net->block(0).up->weight = torch::zeros({2, 2});
  net->block(0).up->named_parameters();
  const auto other = make_hard_net();
  {
    FullyShardedDataParallel moved(other, group);
    other->words.set_requires_grad(true);
  }
}

}  // namespace
}  // namespace flashstep
