// A program that changed between a save and a load: other groups, parameters that came later or are
// trained now, a wrapper behind a pointer.
#include <filesystem>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "flashstep/checkpoint.h"
#include "flashstep/optim.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/train/test_save.h"

namespace flashstep {
namespace {

using testing::expect_same;
using testing::expect_sentence;
using testing::Folder;
using testing::make;
using testing::Net;
using testing::OptimizerPtr;
using testing::take_step;
using testing::tensors_of;
using torch::Tensor;

std::vector<Tensor> of(const torch::nn::Linear& layer) { return layer->parameters(); }

// Its moments and steps come back, although the optimizer has not seen it in a step.
TEST(SaveChanges, AGroupThatWasAddedHasItsState) {
  const Folder owner("added_group");
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const Folder folder("added_group", /*is_owner=*/false);
    for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
      std::vector<Tensor> ends[2];
      for (const bool resumed : {false, true}) {
        const auto net = std::make_shared<Net>();
        DistributedDataParallel model(net, group);
        ShardedAdamW optimizer(of(net->in), torch::optim::AdamWOptions(1e-2), group,
                               {.mode = mode});
        optimizer.add_param_group(torch::optim::OptimizerParamGroup(of(net->out)));
        optimizer.refresh_learning_rates();
        if (resumed) {
          EXPECT_EQ(load_if_exists(folder.path, model, optimizer), 2);
        } else {
          for (int i = 0; i < 2; ++i) take_step(model, optimizer, group.rank());
          save(folder.path, model, optimizer, 2);
        }
        for (int i = 0; i < 2; ++i) take_step(model, optimizer, group.rank());
        ends[resumed] = tensors_of(*net);
      }
      expect_same(ends[1], ends[0]);
      group.barrier();
      if (group.is_first()) std::filesystem::remove_all(folder.path);
      group.barrier();
    }
  });
}

// Its buckets have another order then, and no sentence is needed.
TEST(SaveChanges, ParametersMayBeTrainedFromNowOn) {
  const Folder owner("unfrozen");
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const Folder folder("unfrozen", /*is_owner=*/false);
    for (const bool is_frozen : {true, false}) {
      const auto net = std::make_shared<Net>();
      for (const Tensor& each : of(net->in)) each.set_requires_grad(!is_frozen);
      DistributedDataParallel model(net, group);
      AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
      EXPECT_EQ(load_if_exists(folder.path, model, optimizer), is_frozen ? 0 : 1);
      take_step(model, optimizer, group.rank());
      if (is_frozen) save(folder.path, model, optimizer, 1);
    }
  });
}

TEST(SaveChanges, OfRefusedGroupsNothingIsLoaded) {
  const Folder folder("refused_groups");
  Net net;
  torch::optim::SGD one(net.parameters(), torch::optim::SGDOptions(0.1));
  save(folder.path, net, one, 1);
  for (const Tensor& each : net.parameters()) each.detach().add_(1);
  const std::vector<Tensor> before = tensors_of(net);
  const torch::optim::SGDOptions options(0.1);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& layer : {net.in, net.out})
    groups.emplace_back(of(layer), std::make_unique<torch::optim::SGDOptions>(options));
  torch::optim::SGD two(groups, options);
  expect_sentence([&] { load_if_exists(folder.path, net, two); }, {"groups", "[4]", "[2, 2]"});
  expect_same(tensors_of(net), before);
}

// LibTorch's own load adds to what an optimizer has.
TEST(SaveChanges, AStateOfNoStepTakesTheLatersPlace) {
  const Folder folder("no_step");
  std::vector<Tensor> ends[2];
  for (const bool rewound : {false, true}) {
    Net net;
    const OptimizerPtr optimizer = make(/*Adam*/ 2, net.parameters());
    if (rewound) {
      take_step(net, *optimizer);
      EXPECT_EQ(load_if_exists(folder.path, net, *optimizer), 0);
      EXPECT_TRUE(optimizer->state().empty());
    } else {
      save(folder.path, net, *optimizer, 0);
    }
    take_step(net, *optimizer);
    ends[rewound] = tensors_of(net);
  }
  expect_same(ends[1], ends[0]);
}

TEST(SaveChanges, AWrapperBehindAPointerIsAWrapper) {
  const Group group{Environment()};
  const auto wrapped =
      std::make_shared<DistributedDataParallel<Net>>(std::make_shared<Net>(), group);
  const ModelRef model = wrapped;
  EXPECT_EQ(&model.module(), wrapped->module().get());
  EXPECT_EQ(model.reducer(), &wrapped->reducer());
  EXPECT_EQ(model.group(), &wrapped->group());
}

}  // namespace
}  // namespace flashstep
