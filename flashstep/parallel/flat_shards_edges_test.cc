// Flat shards where something is unusual: parameters that are empty or fewer than ranks, memory
// that was replaced, optimizers that come and go, ranks without rows, gradients that must be let
// go.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/parallel/flat_shards.h"
#include "flashstep/parallel/test_cases.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/testing/archives.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::PlainToy;
using torch::Tensor;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using FlatSgd = ShardedOptimizer<SGD>;

std::vector<Tensor> parameters_of(const std::vector<std::vector<int64_t>>& shapes) {
  torch::manual_seed(31);
  std::vector<Tensor> parameters;
  for (const auto& shape : shapes) parameters.push_back(torch::randn(shape).requires_grad_());
  return parameters;
}

// The gradient of each element of parameter i is i + 1.
Tensor loss_of(const std::vector<Tensor>& parameters) {
  Tensor loss = torch::zeros({});
  for (size_t i = 0; i < parameters.size(); ++i) loss = loss + (parameters[i] * (i + 1.0)).sum();
  return loss;
}

// Trains as the whole optimizer does, and its consolidated state is the whole one's.
void expect_as_whole(const std::vector<std::vector<int64_t>>& shapes, const Group& group,
                     double bucket_megabytes, bool divides_gradients) {
  const auto own = parameters_of(shapes), reference = parameters_of(shapes);
  GradientReducer reducer(own, group, {.bucket_megabytes = bucket_megabytes});
  ShardedOptimizer<AdamW> sharded(own, AdamWOptions(0.01), group,
                                  {.mode = ShardMode::kFlat,
                                   .reducer = divides_gradients ? &reducer : nullptr,
                                   .bucket_megabytes = bucket_megabytes});
  AdamW whole(reference, AdamWOptions(0.01));
  for (const Tensor& parameter : own) {
    EXPECT_GE(sharded.owner(parameter), 0);
    EXPECT_LT(sharded.owner(parameter), group.world_size());
  }
  for (int step = 0; step < 3; ++step) {
    sharded.zero_grad();
    whole.zero_grad();
    loss_of(own).backward();
    reducer.finish_gradient_synchronization();
    loss_of(reference).backward();
    sharded.step();
    whole.step();
    // A mean over three ranks rounds once more than the gradient itself.
    for (size_t i = 0; i < own.size(); ++i)
      EXPECT_TRUE(testing::close(own[i], reference[i], 1e-6)) << "step " << step << ", " << i;
  }
  const int last = group.world_size() - 1;
  sharded.consolidate(last);
  if (group.rank() != last) return;
  AdamW restored(reference, AdamWOptions(0.01));
  testing::load_archive(restored, testing::archive_of(sharded));
  EXPECT_EQ(restored.state().size(), own.size());
}

TEST(Ranks, EmptyParametersAndFewerElementsThanRanks) {
  const auto run = [](const Group& group) {
    for (const bool divides_gradients : {false, true}) {
      for (const double megabytes : {1e-4, 1e-6, 25.0}) {
        SCOPED_TRACE(str(megabytes, " MB, ", divides_gradients));
        expect_as_whole({{0, 4}, {5}, {0}, {32}}, group, megabytes, divides_gradients);
        expect_as_whole({{32}, {0}}, group, megabytes, divides_gradients);
        expect_as_whole({{0}, {2, 0}}, group, megabytes, divides_gradients);
        expect_as_whole({{3}}, group, megabytes, divides_gradients);
      }
    }
  };
  run(Group(Environment()));
  on_ranks({2, 3, 4}, run);
}

TEST(PlanFlat, FlatTensorsOfEmptyParametersCanBeDivided) {
  const std::vector<Tensor> parameters = {torch::zeros({0}), torch::zeros({32})};
  for (const int world_size : {1, 2, 3}) {
    for (const auto& layout :
         plan_flat(parameters, gradient_dtypes(parameters), {1, 0}, 100, world_size)) {
      EXPECT_GT(layout.numel, 0);
      EXPECT_EQ(layout.numel % world_size, 0);
    }
  }
}

void backward(DistributedDataParallel<PlainToy>& net, int seed) {
  torch::manual_seed(seed);
  net.forward(torch::randn({4, 10})).square().mean().backward();
}

// One whole step; whether it changed the first parameter.
bool moves(DistributedDataParallel<PlainToy>& net, torch::optim::Optimizer& optimizer, int seed) {
  const Tensor before = net.module()->fc1->weight.detach().clone();
  optimizer.zero_grad();
  backward(net, seed);
  net.finish_gradient_synchronization();
  optimizer.step();
  return !torch::equal(net.module()->fc1->weight.detach(), before);
}

std::unique_ptr<FlatSgd> flat_sgd(DistributedDataParallel<PlainToy>& net, const Group& group) {
  return std::make_unique<FlatSgd>(
      net.parameters(), SGDOptions(0.1), group,
      ShardOptions{.mode = ShardMode::kFlat, .reducer = &net.reducer()});
}

TEST(Ranks, ReplacedMemoryIsRefused) {
  const auto run = [](const Group& group) {
    DistributedDataParallel<PlainToy> net(std::make_shared<PlainToy>(), group);
    const auto optimizer = flat_sgd(net, group);
    EXPECT_TRUE(moves(net, *optimizer, 1));
    std::stringstream file;
    {
      torch::serialize::OutputArchive archive;
      net.module()->save(archive);
      archive.save_to(file);
    }
    {  // copied: stays where it is
      const torch::NoGradGuard no_grad;
      for (const Tensor& parameter : net.parameters()) parameter.copy_(parameter.clone());
    }
    EXPECT_TRUE(moves(net, *optimizer, 2));
    torch::serialize::InputArchive archive;
    archive.load_from(file);
    net.module()->load(archive);
    backward(net, 3);
    net.finish_gradient_synchronization();
    EXPECT_THROW(optimizer->gradients(), UserError);
    EXPECT_THROW(optimizer->step(), UserError);
  };
  run(Group(Environment()));
  on_ranks(2, run);
}

TEST(Ranks, AReducerServesOneOptimizerAtATime) {
  on_ranks(2, [](const Group& group) {
    DistributedDataParallel<PlainToy> net(std::make_shared<PlainToy>(), group);
    auto optimizer = flat_sgd(net, group);
    EXPECT_THROW(flat_sgd(net, group), UserError);
    EXPECT_TRUE(moves(net, *optimizer, 1)) << "the refused one took nothing away";
    optimizer.reset();
    optimizer = flat_sgd(net, group);
    EXPECT_TRUE(moves(net, *optimizer, 2));
    // In the middle of a step (past the wrapper, whose backward would end it): the next one comes
    // when the step is over.
    torch::manual_seed(3);
    net.module()->forward(torch::randn({4, 10})).square().mean().backward();
    optimizer.reset();
    net.finish_gradient_synchronization();
    optimizer = flat_sgd(net, group);
    EXPECT_TRUE(moves(net, *optimizer, 4));
  });
}

TEST(Ranks, GradientsStayInPlaceAgainAfterTheOptimizer) {
  on_ranks(2, [](const Group& group) {
    DistributedDataParallel<PlainToy> net(std::make_shared<PlainToy>(), group,
                                          {.flat_buckets = false});
    EXPECT_TRUE(moves(net, *flat_sgd(net, group), 1));
    backward(net, 2);
    net.finish_gradient_synchronization();
    const Tensor first = net.module()->fc1->weight.grad(), other = net.module()->fc3->weight.grad();
    EXPECT_FALSE(first.storage().is_alias_of(other.storage())) << "copied into one bucket";
  });
}

struct Chain : torch::nn::Module {
  std::vector<Tensor> weights;
  Chain() {
    for (int i = 0; i < 7; ++i)
      weights.push_back(register_parameter(str("w", i), torch::eye(10) + 0.01 * i));
  }
  Tensor forward(Tensor x) {
    for (const Tensor& weight : weights) x = at::matmul(x, weight);
    return x;
  }
};

using Memory = c10::weak_intrusive_ptr<c10::StorageImpl>;

bool all_expired(const std::vector<Memory>& memories) {
  return std::all_of(memories.begin(), memories.end(),
                     [](const Memory& memory) { return memory.expired(); });
}

// Of more buckets than travel at a time: the first go while backward runs, the last at its end.
TEST(Ranks, WhatWasSentIsLetGo) {
  on_ranks(2, [](const Group& group) {
    for (const bool in_place : {false, true}) {
      DistributedDataParallel<Chain> net(std::make_shared<Chain>(), group,
                                         {.bucket_megabytes = 1e-5, .flat_buckets = !in_place});
      ShardedOptimizer<torch::optim::SGD> optimizer(
          net.parameters(), torch::optim::SGDOptions(0.1), group,
          {.mode = ShardMode::kFlat, .reducer = &net.reducer()});
      for (int step = 0; step < 3; ++step) {
        const Tensor own = torch::full({2, 10}, 0.1 * (1 + step + group.rank()));
        std::vector<Memory> gradients;
        {
          const auto no_sync = net.no_sync();
          net.forward(own).square().mean().backward();
        }
        for (const Tensor& parameter : net.parameters())
          gradients.push_back(parameter.grad().storage().getWeakStorageImpl());
        ASSERT_GT(gradients.size(), kBucketsInFlight);
        net.forward(own).square().mean().backward();
        net.finish_gradient_synchronization();
        // Gloo's thread lets go of what it did a moment after it has said so.
        for (int wait = 0; wait < 5000 && !all_expired(gradients); ++wait)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_TRUE(all_expired(gradients)) << in_place << ", step " << step;
        optimizer.step();
      }
    }
  });
}

TEST(Ranks, RefusedLateParametersAreRefusedAgain) {
  on_ranks(2, [](const Group& group) {
    FlatSgd optimizer(parameters_of({{8}}), SGDOptions(0.1), group, {.mode = ShardMode::kFlat});
    const Tensor memory = torch::zeros({8});
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(
        std::vector<Tensor>{memory.slice(0, 0, 6).detach().requires_grad_(),
                            memory.slice(0, 2, 8).detach().requires_grad_()}));
    EXPECT_THROW(optimizer.step(), UserError);
    EXPECT_THROW(optimizer.step(), UserError);
  });
}

// A rank without rows in the first step counts gradients later: from then on it, too, sends within
// backward, which takes a divided gradient away.
TEST(Ranks, ARankWithoutRowsInTheFirstStepOverlapsLater) {
  on_ranks(2, [](const Group& group) {
    DistributedDataParallel<PlainToy> net(std::make_shared<PlainToy>(), group);
    const auto optimizer = flat_sgd(net, group);
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      if (step == 0 && group.rank() == 1) {
        give_zero_gradients(net.reducer());
      } else {
        // Past the wrapper, whose backward would end with the means.
        torch::manual_seed(step);
        net.module()->forward(torch::randn({4, 10})).square().mean().backward();
      }
      EXPECT_EQ(net.module()->fc1->weight.grad().defined(),
                step == 0 || (step == 1 && group.rank() == 1))
          << "step " << step;
      net.finish_gradient_synchronization();
      optimizer->step();
    }
  });
}

// Rank 1 has rows in the first micro-batch only.
TEST(Ranks, ZeroGradientsKeepWhatWasAddedUp) {
  on_ranks(2, [](const Group& group) {
    const Tensor weight = torch::ones({4}).requires_grad_(),
                 late = torch::ones({2}).requires_grad_();
    GradientReducer reducer({weight, late}, group);
    for (int step = 0; step < 2; ++step) {
      weight.mutable_grad().reset();
      late.mutable_grad().reset();
      {
        const auto no_sync = reducer.no_sync();
        (weight * (group.rank() + 1.0)).sum().backward();  // 1 and 2
      }
      if (group.rank() == 0) {
        ((weight * 5.0).sum() + late.sum()).backward();
      } else {
        give_zero_gradients(reducer);
      }
      reducer.finish_gradient_synchronization();
      EXPECT_TRUE(testing::close(weight.grad(), torch::full({4}, (6.0 + 2.0) / 2), 0));
      EXPECT_TRUE(testing::close(late.grad(), torch::full({2}, 0.5), 0));
    }
  });
}

TEST(Ranks, ZeroGradientsLeaveUnusedParametersAlone) {
  on_ranks(2, [](const Group& group) {
    const Tensor weight = torch::ones({4}).requires_grad_(),
                 unused = torch::ones({2}).requires_grad_();
    GradientReducer reducer({weight, unused}, group, {.allow_unused = true});
    for (int step = 0; step < 2; ++step) {
      weight.mutable_grad().reset();
      if (group.rank() == 0) {
        weight.sum().backward();
      } else {
        give_zero_gradients(reducer);
      }
      reducer.finish_gradient_synchronization();
      EXPECT_TRUE(testing::close(weight.grad(), torch::full({4}, 0.5), 0));
      EXPECT_FALSE(unused.grad().defined());
    }
  });
}

}  // namespace
}  // namespace flashstep
