// What a wrapper stumbles over: mistakes that must become sentences, other people's hooks, memory.
#include <functional>
#include <optional>
#include <tuple>
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/fully_sharded.h"
#include "flashstep/parallel/gradient_hooks.h"
#include "flashstep/parallel/test_cases.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::expect_sentence;
using testing::PlainToy;
using testing::same_bits;
using torch::Tensor;

// --- in one process --------------------------------------------------------------------------

TEST(Wrapping, RefusesNoModule) {
  const Group group{Environment()};
  expect_sentence([&] { DistributedDataParallel(std::shared_ptr<PlainToy>(), group); },
                  {"expected a module", "null"});
}

struct Choosy : torch::nn::Module {
  Tensor weight = register_parameter("weight", torch::ones({2}));
  std::tuple<Tensor, int> forward(std::unique_ptr<int> only_moved, Tensor& changed,
                                  double factor = 2) {
    changed.add_(1);
    return {weight * factor, *only_moved};
  }
  Tensor& forward() { return weight; }
};
TORCH_MODULE_IMPL(ChoosyHolder, Choosy);

TEST(Forward, PassesEverythingOnAsItCame) {
  const Group group{Environment()};
  DistributedDataParallel wrapped(std::make_shared<Choosy>(), group);
  Tensor changed = torch::zeros({1});
  const auto [y, number] = wrapped.forward(std::make_unique<int>(5), changed, 3.0);
  EXPECT_EQ(number, 5);
  EXPECT_EQ(changed.item<float>(), 1);
  EXPECT_EQ(y[0].item<float>(), 3);
  static_assert(std::is_same_v<decltype(wrapped.forward()), Tensor&>);
  EXPECT_EQ(&wrapped.forward(), &wrapped.module()->weight);
  // A holder, as TORCH_MODULE makes them, and modules of torch's own.
  DistributedDataParallel held(ChoosyHolder(), group);
  EXPECT_EQ(held.parameters().size(), 1u);
  DistributedDataParallel linear(torch::nn::Linear(3, 2), group);
  EXPECT_EQ(linear.forward(torch::ones({4, 3})).size(1), 2);
  wrapped.eval();
  EXPECT_FALSE(wrapped.module()->is_training());
}

struct Recorder : torch::autograd::PostAccumulateGradHook {
  explicit Recorder(int* count) : count(count) {}
  void operator()(const Tensor&) override { ++*count; }
  int* count;
};

TEST(Hooks, AnEarlierHookStaysAndComesBack) {
  Tensor parameter = torch::ones({2}).requires_grad_();
  int theirs = 0, ours = 0;
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Recorder>(&theirs));
  {
    GradientHooks hooks({parameter}, [&](int64_t index) {
      EXPECT_EQ(index, 0);
      EXPECT_EQ(theirs, ours + 1) << "the earlier one runs first";
      ++ours;
    });
    (parameter * 2).sum().backward();
  }
  (parameter * 2).sum().backward();
  EXPECT_EQ(theirs, 2);
  EXPECT_EQ(ours, 1);
  auto outer =
      std::make_unique<GradientHooks>(std::vector<Tensor>{parameter}, [&](int64_t) { ++ours; });
  GradientHooks inner({parameter}, [&](int64_t) { ++ours; });
  outer.reset();  // the one below goes first: it stays in the chain and does nothing
  (parameter * 2).sum().backward();
  EXPECT_EQ(theirs, 3);
  EXPECT_EQ(ours, 2);
}

TEST(Hooks, OneAloneAverages) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    torch::nn::Linear linear(3, 2);
    for (const Strategy strategy : {Strategy::kBucketed, Strategy::kNaive}) {
      auto first = std::make_unique<GradientReducer>(linear->parameters(), group);
      DistributedDataParallel second(linear, group, {.strategy = strategy});
      expect_sentence(
          [&] {
            second.forward(torch::ones({4, 3})).sum().backward();
          },
          {"averaged by one reducer, got two"});
      second.reducer().forget_step();
      first.reset();
      second.forward(torch::ones({4, 3})).sum().backward();
    }
  });
}

TEST(Options, AreChecked) {
  const Group group{Environment()};
  const std::vector<Tensor> parameters = {torch::ones({2}).requires_grad_()};
  expect_sentence([] { strategy_by_name("buckets"); }, {"bucketed", "got buckets"});
  expect_sentence([&] { GradientReducer({parameters[0] * 2}, group); }, {"leaves", "computed"});
  expect_sentence([&] { GradientReducer(parameters, group, {}, {"a", "b"}); }, {"name for each"});
  const auto expect_refused = [&](const ReducerOptions& options,
                                  const std::vector<std::string>& words) {
    expect_sentence([&] { GradientReducer(parameters, group, options); }, words);
  };
  expect_refused({.bucket_megabytes = -1}, {"bucket_megabytes of at least 0"});
  expect_refused({.communication_dtype = torch::kInt}, {"floating-point"});
  expect_refused({.strategy = Strategy::kTorch, .allow_unused = true},
                 {"strategy torch", "allow_unused"});
  const auto twice = GradientReducer({parameters[0], parameters[0]}, group).reduced_parameters();
  EXPECT_EQ(twice.size(), 1u);
}

struct Replaceable : torch::nn::Module {
  Replaceable() { register_parameter("weight", torch::ones({2})); }
  void replace() { parameters_["weight"] = torch::zeros({2}).requires_grad_(); }
  Tensor forward() { return parameters_["weight"] * 2; }
};

TEST(Module, ChangesAfterWrappingAreNamed) {
  const Group group{Environment()};
  {
    DistributedDataParallel wrapped(std::make_shared<PlainToy>(), group);
    wrapped.to(torch::kDouble);
    expect_sentence([&] { wrapped.finish_gradient_synchronization(); },
                    {"fixed", "Float", "Double"});
  }
  {
    DistributedDataParallel wrapped(std::make_shared<PlainToy>(), group);
    wrapped.module()->fc3->weight.set_requires_grad(false);
    expect_sentence([&] { wrapped.finish_gradient_synchronization(); }, {"fc3.weight", "frozen"});
  }
  {
    DistributedDataParallel wrapped(std::make_shared<PlainToy>(), group);
    wrapped.module()->register_parameter("late", torch::zeros({1}));
    expect_sentence([&] { wrapped.finish_gradient_synchronization(); }, {"5 parameters", "got 6"});
  }
  {
    DistributedDataParallel wrapped(std::make_shared<Replaceable>(), group);
    wrapped.module()->replace();
    expect_sentence([&] { wrapped.finish_gradient_synchronization(); },
                    {"weight", "another tensor"});
  }
}

// --- with several ranks ----------------------------------------------------------------------

TEST(Ranks, DifferencesBetweenRanksAreNamed) {
  on_ranks(3, [](const Group& group) {
    const bool is_last = group.rank() == 2;
    const auto wrap = [&](const std::vector<std::vector<int64_t>>& shapes) {
      std::vector<Tensor> parameters;
      std::vector<std::string> names;
      for (const auto& shape : shapes) {
        names.push_back(str("layer", parameters.size()));
        parameters.push_back(torch::zeros(shape).requires_grad_());
      }
      GradientReducer(parameters, group, {}, names);
    };
    expect_sentence(
        [&] {
          wrap({{2}, is_last ? std::vector<int64_t>{4, 3} : std::vector<int64_t>{3, 4}});
        },
        {"number 1", "layer1", "[3, 4]", "on rank 0", "[4, 3]", "on rank 2"});
    expect_sentence(
        [&] {
          wrap(is_last ? std::vector<std::vector<int64_t>>{{2}}
                       : std::vector<std::vector<int64_t>>{{2}, {3}});
        },
        {"number 1", "no more parameters on rank 2"});
  });
}

TEST(Ranks, MistakesBecomeSentences) {
  on_ranks(2, [](const Group& group) {
    for (const Strategy strategy : own_strategies()) {
      const Tensor a = torch::ones({3}).requires_grad_(), b = torch::ones({4}).requires_grad_();
      const ReducerOptions options{.strategy = strategy};
      {
        GradientReducer reducer({a, b}, group, options, {"a", "b"});
        a.sum().backward();
        expect_sentence([&] { reducer.finish_gradient_synchronization(); },
                        {"none for b", "allow_unused"});
      }
      {
        GradientReducer reducer({a, b}, group, options, {"a", "b"});
        (group.is_first() ? a.sum() + b.sum() : a.sum()).backward();
        expect_sentence([&] { reducer.finish_gradient_synchronization(); },
                        {"on every rank", "some ranks for b"});
      }
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      {
        // Later than in the first step: every rank hears of it before it updates anything, and
        // where one goes on all the same, its mean is none.
        GradientReducer reducer({a, b}, group, options, {"a", "b"});
        (a.sum() + b.sum()).backward();
        reducer.finish_gradient_synchronization();
        a.mutable_grad().reset();
        b.mutable_grad().reset();
        (group.is_first() ? a.sum() + b.sum() : a.sum()).backward();
        expect_sentence([&] { reducer.finish_gradient_synchronization(); },
                        {"none for b", "on rank 1", "allow_unused"});
        EXPECT_EQ(a.grad()[0].item<float>(), 1);
        EXPECT_EQ(b.grad().defined(), group.is_first());
        if (group.is_first()) {
          EXPECT_TRUE(b.grad().isnan().all().item<bool>());
        }
        a.mutable_grad().reset();
        b.mutable_grad().reset();
        (a.sum() + b.sum()).backward();
        reducer.finish_gradient_synchronization();
        EXPECT_EQ(b.grad()[0].item<float>(), 1);
      }
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      {
        GradientReducer reducer({a, b}, group, options, {"a", "b"});
        expect_sentence(
            [&] {
              (a.pow(2).sum() + b.pow(2).sum()).backward({}, std::nullopt, /*create_graph=*/true);
            },
            {"create_graph"});
        a.mutable_grad().reset();
        b.mutable_grad().reset();
        const auto no_sync = reducer.no_sync();
        expect_sentence([&] { reducer.finish_gradient_synchronization(); }, {"no_sync"});
      }
    }
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    DistributedDataParallel sparse(table, group);
    const Tensor loss = sparse.forward(torch::zeros({3}, torch::kLong)).sum();
    expect_sentence([&] { loss.backward(); }, {"dense gradients", "sparse", "weight"});

    DistributedDataParallel forgetful(torch::nn::Linear(2, 2), group);
    forgetful.module()->forward(torch::ones({1, 2})).sum().backward();  // past the wrapper
    expect_sentence(
        [&] {
          forgetful.forward(torch::ones({1, 2}));
        },
        {"forget_step()", "finish_gradient_synchronization()", "no_sync"});
    GradientReducer unprepared(table->parameters(), group, {.strategy = Strategy::kTorch});
    expect_sentence([&] { unprepared.finish_gradient_synchronization(); },
                    {"prepare_for_backward()"});
  });
}

// What a sentence is about, for who does not read it.
TEST(Ranks, MistakesKnowTheirParameter) {
  on_ranks(2, [](const Group& group) {
    const Tensor a = torch::ones({3}).requires_grad_(), b = torch::ones({4}).requires_grad_();
    GradientReducer reducer({a, b}, group, {}, {"a", "b"});
    const auto finish = [&] { reducer.finish_gradient_synchronization(); };
    a.sum().backward();
    EXPECT_EQ(testing::refused_tensor(finish), "b");  // in the first step
    b.sum().backward();
    finish();
    a.mutable_grad().reset();
    b.mutable_grad().reset();
    (group.is_first() ? a.sum() + b.sum() : a.sum()).backward();
    EXPECT_EQ(testing::refused_tensor(finish), "b");  // later: rank 1's, heard by both
    EXPECT_EQ(testing::refused_tensor([&] {
                GradientReducer({group.is_first() ? a : torch::ones({5}).requires_grad_()}, group,
                                {}, {"w"});
              }),
              "w");
  });
}

TEST(Ranks, GradientsLieInBuckets) {
  on_ranks(2, [](const Group& group) {
    const std::vector<Tensor> parameters = {torch::ones({40}).requires_grad_(),
                                            torch::ones({3, 5}).requires_grad_()};
    torch::optim::SGD optimizer(parameters, 0.1);
    GradientReducer reducer(parameters, group);
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> memory;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      if (step == 2) {
        // A thread of Gloo's can hold a message for a moment after its end.
        for (int ms = 0; ms < 1000 && !memory->expired(); ++ms) ::usleep(1000);
        EXPECT_TRUE(memory->expired()) << "zero_grad frees the bucket";
      }
      ((parameters[0].sum() + parameters[1].sum()) * (group.rank() + 1)).backward();
      reducer.finish_gradient_synchronization();
      for (const Tensor& parameter : parameters) {
        EXPECT_TRUE(same_bits(parameter.grad(), torch::full_like(parameter, 1.5)));
        EXPECT_EQ(parameter.grad().storage().unsafeGetStorageImpl(),
                  parameters[0].grad().storage().unsafeGetStorageImpl());
        EXPECT_FALSE(parameter.grad().is_view());
      }
      memory = parameters[0].grad().storage().getWeakStorageImpl();
    }
  });
}

// Gradients that a user keeps are his: the next step does not write into them.
TEST(Ranks, KeptGradientsStay) {
  on_ranks(2, [](const Group& group) {
    DistributedDataParallel wrapped(torch::nn::Linear(4, 4), group);
    Tensor kept, value;
    for (int step = 0; step < 3; ++step) {
      wrapped.zero_grad();
      wrapped.forward(torch::full({2, 4}, step + group.rank() + 1.0)).sum().backward();
      wrapped.finish_gradient_synchronization();
      if (step == 1) kept = wrapped.module()->weight.grad();
      if (step == 1) value = kept.clone();
    }
    EXPECT_TRUE(same_bits(kept, value));
    EXPECT_FALSE(wrapped.module()->weight.grad().equal(value));
  });
}

// One row of memory stands for all rows, as in masks and positions.
struct Expanded : torch::nn::Module {
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(4, 3))};
  Tensor mask;
  explicit Expanded(double value)
      : mask(register_buffer("mask", torch::full({1, 4}, value).expand({3, 4}))) {}
  Tensor forward(const Tensor& x) { return linear(x * mask); }
};

TEST(Wrapping, ExpandedBuffersAreRankZeros) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    DistributedDataParallel net(std::make_shared<Expanded>(group.rank() + 2), group);
    EXPECT_TRUE(torch::equal(net.module()->mask, torch::full({3, 4}, 2.0)));
    EXPECT_EQ(net.module()->mask.stride(0), 0);
  });
}

// Gloo's own broadcast knows no complex numbers and no int16.
TEST(Wrapping, BringsBuffersOfEveryDtype) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    torch::nn::Linear linear(3, 2);
    const auto rank = static_cast<double>(group.rank());
    for (const at::ScalarType dtype : {at::kComplexFloat, at::kShort, at::kBool, at::kDouble}) {
      linear->register_buffer(c10::toString(dtype), torch::full({2, 3}, rank + 1).to(dtype));
    }
    DistributedDataParallel model(linear, group);
    for (const Tensor& buffer : linear->buffers())
      EXPECT_TRUE(torch::equal(buffer, torch::ones({2, 3}).to(buffer.scalar_type()))) << buffer;
  });
}

TEST(Wrapping, RanksWithOtherBuffersAreToldSo) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    torch::nn::Linear linear(3, 2);
    linear->register_buffer("seen", torch::zeros({2 + group.rank()}));
    expect_sentence([&] { DistributedDataParallel(linear, group); },
                    {"the same buffers", "of shape [2], Float, on cpu on rank 0",
                     "of shape [3], Float, on cpu on rank 1"});
    expect_sentence([&] { FullyShardedDataParallel(linear, group); }, {"the same buffers"});
    EXPECT_EQ(linear->weight.sizes(), at::IntArrayRef({2, 3})) << "nothing is divided";
    torch::nn::Linear other(3, 2);
    DistributedDataParallel model(other, group);
    if (group.rank() == 1) other->register_buffer("late", torch::zeros({2}));
    expect_sentence([&] { model.broadcast_buffers(); }, {"got no more buffers on rank 0"});
  });
}

}  // namespace
}  // namespace flashstep
