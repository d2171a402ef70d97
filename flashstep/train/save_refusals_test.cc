// What save() and load_if_exists() refuse, on all ranks and without a change.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "flashstep/checkpoint.h"
#include "flashstep/comm/agreement.h"
#include "flashstep/detail/files.h"
#include "flashstep/fully_sharded.h"
#include "flashstep/optim.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/train/test_save.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using testing::expect_sentence;
using testing::Folder;
using testing::make;
using testing::Net;
using testing::OptimizerPtr;
using testing::take_step;
using torch::Tensor;

// On all ranks, in one line, and the optimizer is as it was.
TEST(Save, OtherParameterGroupsAreRefused) {
  const Folder owner("groups");
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const Folder folder("groups", /*is_owner=*/false);
    const torch::optim::SGDOptions options(0.1);
    DistributedDataParallel model(std::make_shared<Net>(), group);
    torch::optim::SGD optimizer(model.parameters(), options);
    save(folder.path, model, optimizer, 1);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const Tensor& each : model.parameters())
      groups.emplace_back(std::vector<Tensor>{each},
                          std::make_unique<torch::optim::SGDOptions>(options));
    torch::optim::SGD one_by_one(groups, options);
    ShardedOptimizer<torch::optim::SGD> sharded(groups, options, group);
    for (torch::optim::Optimizer* each : {static_cast<torch::optim::Optimizer*>(&one_by_one),
                                          static_cast<torch::optim::Optimizer*>(&sharded)}) {
      const std::string sentence =
          testing::refusal([&] { load_if_exists(folder.path, model, *each); });
      EXPECT_EQ(sentence,
                "[resume] expected an optimizer with the parameter groups that were saved, of [4] "
                "parameters, got groups of [1, 1, 1, 1]");
    }
  });
}

// Before the first step, not after those to the first save.
TEST(Save, AnOptimizerThatFullyShardedParametersCannotSaveIsRefusedAtOnce) {
  const Folder owner("at_once");
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const Folder folder("at_once", /*is_owner=*/false);
    FullyShardedDataParallel model(std::make_shared<Net>(), group);
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
    expect_sentence([&] { load_if_exists(folder.path, model, optimizer); },
                    {"expected flashstep's AdamW", "fully sharded"});
    AdamW ours(model.parameters(), torch::optim::AdamWOptions(0.1));
    EXPECT_EQ(load_if_exists(folder.path, model, ours), 0);
  });
}

TEST(Save, AFailureIsThrownOnAllRanks) {
  const Folder folder("refused");
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const Folder folder("refused", /*is_owner=*/false);
    if (group.is_first()) write_file(folder.path, "a file where the directory would be");
    DistributedDataParallel model(std::make_shared<Net>(), group);
    ShardedAdamW optimizer(model, torch::optim::AdamWOptions(1e-2));
    EXPECT_THROW(save(folder.path, model, optimizer, 1), MachineError);
    take_step(model, optimizer, group.rank());  // and they go on
    EXPECT_EQ(group.all_reduce(1, Reduce::kSum), 2);
    // A module that is not wrapped has no group to save with; a plain optimizer knows none either.
    torch::optim::SGD plain(model.parameters(), torch::optim::SGDOptions(0.1));
    ::setenv("RANK", "0", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    expect_sentence([&] { save(folder.path, *model.module(), plain, 1); }, {"wrapped", "2 ranks"});
  });
}

TEST(Save, FilesOfOthersAreRefused) {
  const Folder folder("others");
  Net net;
  const OptimizerPtr adamw = make(0, net.parameters()), sgd = make(1, net.parameters());
  take_step(net, *adamw);
  save(folder.path, net, *adamw, 1);
  torch::nn::Linear other(3, 3);
  const OptimizerPtr of_other = make(0, other->parameters());
  expect_sentence([&] { load_if_exists(folder.path, other, *of_other); }, {"weight", "step 1"});
  EXPECT_EQ(testing::refused_tensor([&] { load_if_exists(folder.path, other, *of_other); }),
            "weight");
  expect_sentence([&] { load_if_exists(folder.path, net, *sgd); }, {"another optimizer"});
  // One that is damaged is passed over; when all are, nothing is started anew.
  take_step(net, *adamw);
  save(folder.path, net, *adamw, 2);
  fs::resize_file(folder.path / "step_00000002" / "model.safetensors", 10);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(load_if_exists(folder.path, net, *adamw), 1);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("model.safetensors"), std::string::npos);
  fs::remove(folder.path / "step_00000001" / "model.safetensors");
  expect_sentence([&] { load_if_exists(folder.path, net, *adamw); }, {"step_00000001"});
  // What a killed process left half-written is none.
  const Folder half("half");
  fs::create_directories(half.path / "step_00000001.tmp");
  EXPECT_EQ(load_if_exists(half.path, net, *adamw), 0);
}

// Floating dtypes are converted; fractions do not become whole numbers.
TEST(Save, AnotherDtypeIsConvertedOrRefused) {
  const Folder folder("dtypes");
  struct Masked : torch::nn::Module {
    Tensor weight = register_parameter("weight", torch::ones({2}));
    Tensor mask;
    explicit Masked(const Tensor& from) : mask(register_buffer("mask", from)) {}
  } net(torch::full({2}, 0.5)), lower(torch::zeros({2}, torch::kBFloat16)),
      whole(torch::zeros({2}, torch::kByte));
  const OptimizerPtr saved = make(1, net.parameters());
  save(folder.path, net, *saved, 1);
  const OptimizerPtr first = make(1, lower.parameters()), second = make(1, whole.parameters());
  EXPECT_EQ(load_if_exists(folder.path, lower, *first), 1);
  EXPECT_TRUE(torch::equal(lower.mask, torch::full({2}, 0.5, torch::kBFloat16)));
  expect_sentence([&] { load_if_exists(folder.path, whole, *second); },
                  {"expected mask of Byte", "got Float"});
}

TEST(Save, WithoutItsLossScaleNothingIsLoaded) {
  const Folder folder("no_scale");
  Net net, other(/*seed=*/2);
  const OptimizerPtr saved = make(0, net.parameters()), optimizer = make(0, other.parameters());
  take_step(net, *saved);
  save(folder.path, net, *saved, 1);
  const std::vector<Tensor> before = testing::tensors_of(other);
  GradientScaler scaler(torch::kCPU);
  EXPECT_THROW(load_if_exists(folder.path, other, *optimizer, {.scaler = &scaler}), AgreedError);
  testing::expect_same(testing::tensors_of(other), before);
  EXPECT_TRUE(optimizer->state().empty());
}

// A scaler of a checkpoint that is refused for another reason.
TEST(Save, ALossScaleIsNotLoadedAlone) {
  const Folder folder("scale_alone");
  Net net;
  torch::nn::Linear other(3, 3);
  const OptimizerPtr saved = make(0, net.parameters()), optimizer = make(0, other->parameters());
  GradientScaler scaler(torch::kCPU, {.initial_scale = 64}), own(torch::kCPU);
  save(folder.path, net, *saved, 1, {.scaler = &scaler});
  expect_sentence([&] { load_if_exists(folder.path, other, *optimizer, {.scaler = &own}); },
                  {"weight", "step 1"});
  EXPECT_EQ(own.scale().item<float>(), 65536);
}

// All ranks find the mistake, and end with their own sentence.
TEST(Save, AnotherModelOrOptimizerIsRefusedByAllRanks) {
  testing::run_ranks(3, [](const Environment& environment) {
    const Group group(environment);
    const Folder folder("other_model", /*is_owner=*/false);
    DistributedDataParallel model(std::make_shared<Net>(), group);
    {
      ShardedAdamW saved(model, torch::optim::AdamWOptions(1e-2));
      take_step(model, saved, group.rank());
      save(folder.path, model, saved, 1);
    }
    {
      ShardedOptimizer<torch::optim::SGD> sgd(model, torch::optim::SGDOptions(1e-2).momentum(0.9));
      expect_sentence([&] { load_if_exists(folder.path, model, sgd); }, {"another optimizer"});
      EXPECT_EQ(group.all_reduce(1, Reduce::kSum), 3);  // and could go on
    }
    DistributedDataParallel other(torch::nn::Linear(6, 8), group);
    ShardedAdamW optimizer(other, torch::optim::AdamWOptions(1e-2));
    expect_sentence([&] { load_if_exists(folder.path, other, optimizer); }, {"weight", "step 1"});
    EXPECT_EQ(group.all_reduce(1, Reduce::kSum), 3);
    if (group.is_first()) fs::remove_all(folder.path);
  });
}

}  // namespace
}  // namespace flashstep
