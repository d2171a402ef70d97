// A loop of one's own: saved and loaded with any optimizer, sharded or not, as if never stopped.
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/init.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "flashstep/checkpoint.h"
#include "flashstep/detail/files.h"
#include "flashstep/loop.h"
#include "flashstep/optim.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/train/test_save.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using testing::expect_sentence;
using testing::same_bits;
using torch::Tensor;

using testing::expect_same;
using testing::Folder;
using testing::make;
using testing::Net;
using testing::OptimizerPtr;
using testing::take_step;
using testing::tensors_of;

TEST(Save, GoesOnAsIfNeverStopped) {
  for (const int kind : {0, 1, 2}) {
    const Folder folder("alone");
    std::vector<Tensor> whole;
    {
      Net net;
      const OptimizerPtr optimizer = make(kind, net.parameters());
      EXPECT_EQ(load_if_exists(folder.path, net, *optimizer), 0);
      EXPECT_FALSE(fs::exists(folder.path));
      for (int step = 0; step < 5; ++step) {
        take_step(net, *optimizer);
        if (step == 2) save(folder.path, net, *optimizer, 3);
      }
      whole = tensors_of(net);
    }
    Net net(7);
    const OptimizerPtr optimizer = make(kind, net.parameters());
    EXPECT_EQ(load_if_exists(folder.path, net, *optimizer), 3);
    for (int step = 3; step < 5; ++step) take_step(net, *optimizer);
    expect_same(tensors_of(net), whole);
  }
}

// A tied tensor, which parameters() names twice.
struct TiedNet : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(6, 6))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(6, 6))};
  Tensor head = register_parameter("head", in->weight);
  explicit TiedNet(uint64_t seed = 1) {
    torch::manual_seed(seed);
    for (const Tensor& p : parameters()) torch::nn::init::normal_(p);
  }
  Tensor forward(const Tensor& x) { return torch::relu(out(in(x))).matmul(head); }
};

using MakeForModel = std::function<OptimizerPtr(DistributedDataParallel<TiedNet>& model)>;

template <typename Optimizer, typename Options>
std::vector<MakeForModel> alone_and_sharded(const Options& options) {
  return {[options](auto& model) -> OptimizerPtr {
            return std::make_unique<Optimizer>(model.parameters(), options);
          },
          [options](auto& model) -> OptimizerPtr {
            return std::make_unique<ShardedOptimizer<Optimizer>>(model, options);
          },
          [options](auto& model) -> OptimizerPtr {
            return std::make_unique<ShardedOptimizer<Optimizer>>(
                model, options, ShardOptions{.mode = ShardMode::kFlat});
          }};
}

std::vector<MakeForModel> every_optimizer() {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  std::vector<MakeForModel> all;
  for (const auto& makes : {alone_and_sharded<torch::optim::AdamW>(AdamWOptions(1e-2)),
                            alone_and_sharded<flashstep::AdamW>(AdamWOptions(1e-2)),
                            alone_and_sharded<Adam>(AdamOptions(1e-2)),
                            alone_and_sharded<SGD>(SGDOptions(0.1).momentum(0.9)),
                            alone_and_sharded<RMSprop>(RMSpropOptions(1e-2)),
                            alone_and_sharded<Adagrad>(AdagradOptions(1e-2))})
    all.insert(all.end(), makes.begin(), makes.end());
  return all;
}

TEST(Save, TiedWeightsGoOnWithAnyOptimizer) {
  const Group group{Environment()};
  const std::vector<MakeForModel> makes = every_optimizer();
  for (size_t i = 0; i < makes.size(); ++i) {
    SCOPED_TRACE(i);
    const Folder folder("tied");
    DistributedDataParallel model(std::make_shared<TiedNet>(), group);
    const OptimizerPtr optimizer = makes[i](model);
    for (int step = 0; step < 5; ++step) {
      take_step(model, *optimizer);
      if (step == 2) save(folder.path, model, *optimizer, 3);
    }
    DistributedDataParallel again(std::make_shared<TiedNet>(7), group);
    const OptimizerPtr of_again = makes[i](again);
    ASSERT_EQ(load_if_exists(folder.path, again, *of_again), 3);
    for (int step = 3; step < 5; ++step) take_step(again, *of_again);
    expect_same(tensors_of(*again.module()), tensors_of(*model.module()));
  }
}

TEST(Save, AnotherOptimizerIsRefused) {
  const Group group{Environment()};
  const std::vector<MakeForModel> makes = every_optimizer();  // three ways for each class
  for (size_t saved = 0; saved < makes.size(); saved += 3) {
    const Folder folder("another");
    DistributedDataParallel model(std::make_shared<TiedNet>(), group);
    const OptimizerPtr optimizer = makes[saved](model);
    take_step(model, *optimizer);
    save(folder.path, model, *optimizer, 1);
    const std::vector<Tensor> before = tensors_of(*model.module());
    for (size_t loaded = 0; loaded < makes.size(); ++loaded) {
      if (loaded / 3 == saved / 3) continue;
      const OptimizerPtr other = makes[loaded](model);
      expect_sentence(
          [&] { load_if_exists(folder.path, model, *other); },
          {"step 1", "another optimizer", loaded / 3 == 3 ? "torch::optim::SGD" : "::"});
    }
    expect_same(tensors_of(*model.module()), before);
  }
}

// It does not say whose state it is.
TEST(Save, ACheckpointOfAnEarlierVersionIsLoaded) {
  for (const int kind : {0, 1, 2}) {
    const Folder folder("earlier");
    Net net;
    const OptimizerPtr optimizer = make(kind, net.parameters());
    take_step(net, *optimizer);
    save(folder.path, net, *optimizer, 1);
    Checkpoint checkpoint = load_checkpoint(checkpoint_directory(folder.path, 1));
    auto state = nlohmann::ordered_json::parse(checkpoint.state_json);
    EXPECT_EQ(state.erase("optimizer_class"), 1u);
    checkpoint.state_json = state.dump();
    save_checkpoint(folder.path, checkpoint, 1);
    Net again(7);
    const OptimizerPtr of_again = make(kind, again.parameters());
    EXPECT_EQ(load_if_exists(folder.path, again, *of_again), 1);
    torch::manual_seed(3);
    take_step(net, *optimizer);
    torch::manual_seed(3);
    take_step(again, *of_again);
    expect_same(tensors_of(again), tensors_of(net));
  }
}

// A step on `world_size` ranks with each way to divide the optimizer.
void ranks_go_on(const Environment& environment, int way) {
  const Group group(environment);
  const Folder folder(str("way", way), /*is_owner=*/false);
  const auto make_sharded = [&](DistributedDataParallel<Net>& model) -> OptimizerPtr {
    using torch::optim::AdamWOptions;
    const ShardMode mode = way < 2 ? ShardMode::kWhole : ShardMode::kFlat;
    if (way == 4) return make(2, model.parameters());
    if (way % 2 == 0)
      return std::make_unique<ShardedAdamW>(model, AdamWOptions(1e-2), ShardOptions{.mode = mode});
    return std::make_unique<ShardedOptimizer<torch::optim::AdamW>>(model, AdamWOptions(1e-2),
                                                                   ShardOptions{.mode = mode});
  };
  std::vector<Tensor> whole;
  {
    DistributedDataParallel model(std::make_shared<Net>(), group);
    const OptimizerPtr optimizer = make_sharded(model);
    EXPECT_EQ(load_if_exists(folder.path, model, *optimizer), 0);
    torch::manual_seed(group.rank());
    for (int step = 0; step < 5; ++step) {
      take_step(model, *optimizer, group.rank());
      if (step == 2) save(folder.path, model, *optimizer, 3);
    }
    whole = tensors_of(*model.module());
  }
  DistributedDataParallel model(std::make_shared<Net>(7), group);
  const OptimizerPtr optimizer = make_sharded(model);
  EXPECT_EQ(load_if_exists(folder.path, model, *optimizer), 3);
  for (int step = 3; step < 5; ++step) take_step(model, *optimizer, group.rank());
  expect_same(tensors_of(*model.module()), whole);
  group.barrier();
  expect_sentence([&] { save(folder.path, model, *optimizer, -1); }, {"at least 0", "got -1"});
}

TEST(Save, RanksGoOnAsIfNeverStopped) {
  std::vector<std::unique_ptr<Folder>> folders;
  for (const int way : {0, 1, 2, 3, 4}) {
    SCOPED_TRACE(way);
    folders.push_back(std::make_unique<Folder>(str("way", way)));
    testing::run_ranks(2, [way](const Environment& environment) { ranks_go_on(environment, way); });
  }
  // And one process from the state of two.
  for (const int way : {0, 1, 2, 3, 4}) {
    SCOPED_TRACE(way);
    Net net(9);
    const torch::optim::AdamWOptions options(1e-2);
    const OptimizerPtr optimizer =
        way % 2 == 1 ? std::make_unique<torch::optim::AdamW>(net.parameters(), options)
                     : make(way == 4 ? 2 : 0, net.parameters());
    EXPECT_EQ(load_if_exists(folders[static_cast<size_t>(way)]->path, net, *optimizer), 3);
    EXPECT_EQ(net.seen.item<float>(), 3);
    EXPECT_NO_THROW(take_step(net, *optimizer));
  }
}

// Its weights and state go into a module that is not divided, too.
void saves_and_loads_shards(const Environment& environment) {
  const Group group(environment);
  const Folder folder(str("full", group.world_size()), /*is_owner=*/false);
  const auto step = [&](FullyShardedDataParallel<Net>& model, torch::optim::Optimizer& optimizer) {
    const Tensor x = torch::randn({4, 6}) + group.rank();
    model(x).square().mean().backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  FullyShardedDataParallel model(std::make_shared<Net>(), group);
  AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
  for (int i = 0; i < 3; ++i) step(model, optimizer);
  save(folder.path, model, optimizer, 3);
  const NamedTensors saved = model.gather_full_parameters();
  step(model, optimizer);

  FullyShardedDataParallel again(std::make_shared<Net>(7), group);
  AdamW again_optimizer(again.parameters(), torch::optim::AdamWOptions(1e-2));
  EXPECT_EQ(load_if_exists(folder.path, again, again_optimizer), 3);
  step(again, again_optimizer);
  expect_same(tensors_of(*again.module()), tensors_of(*model.module()));

  const auto net = std::make_shared<Net>(9);
  DistributedDataParallel whole(net, group);
  AdamW whole_optimizer(whole.parameters(), torch::optim::AdamWOptions(1e-2));
  EXPECT_EQ(load_if_exists(folder.path, whole, whole_optimizer), 3);
  for (const auto& [name, tensor] : saved)
    EXPECT_TRUE(same_bits(net->named_parameters()[name].detach(), tensor)) << name;
}

TEST(Save, TakesFullyShardedModules) {
  for (const int world_size : {1, 2}) {
    const Folder owner(str("full", world_size));
    testing::run_ranks(world_size, saves_and_loads_shards);
  }
}

// Its elements lie in one place, which nothing can be copied to.
TEST(Save, AnExpandedBufferComesBack) {
  const Folder folder("expanded");
  struct Expanded : torch::nn::Module {
    Tensor weight = register_parameter("weight", torch::ones({2}));
    Tensor scale = register_buffer("scale", torch::ones({1}).expand({4}));
  } net;
  const OptimizerPtr sgd = make(1, net.parameters());
  save(folder.path, net, *sgd, 1);
  net.scale[0].mul_(3);
  EXPECT_EQ(load_if_exists(folder.path, net, *sgd), 1);
  EXPECT_TRUE(torch::equal(net.scale, torch::ones({4})));
  EXPECT_TRUE(net.scale.is_same(net.named_buffers()["scale"]));
}

// A kill between the two renames of a replaced checkpoint.
TEST(Save, AReplacementThatWasBrokenOffIsFinished) {
  const Folder folder("replaced");
  Net net;
  const OptimizerPtr adamw = make(0, net.parameters());
  save(folder.path, net, *adamw, 3);
  fs::rename(folder.path / "step_00000003", folder.path / "step_00000003.replaced");
  EXPECT_EQ(load_if_exists(folder.path, net, *adamw), 3);
}

TEST(Save, KeepsTheNewestAndTheScale) {
  const Folder folder("scale");
  Net net;
  const OptimizerPtr adamw = make(0, net.parameters());
  GradientScaler scaler(torch::kCPU, {.initial_scale = 64});
  const SaveOptions options = {.keep = 3, .scaler = &scaler};
  for (int step = 1; step < 6; ++step) save(folder.path, net, *adamw, step, options);
  EXPECT_EQ(list_checkpoints(folder.path), (std::vector<int64_t>{3, 4, 5}));
  scaler.update(torch::ones({}));
  EXPECT_EQ(scaler.scale().item<float>(), 32);
  EXPECT_EQ(load_if_exists(folder.path, net, *adamw, options), 5);
  EXPECT_EQ(scaler.scale().item<float>(), 64);
}

// The same files: what the library's loop has written is loaded here, and the other way.
TEST(Save, SharesItsFilesWithTheLoop) {
  const Folder folder("loop");
  Net net;
  AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
  Job job{net, optimizer, [&](int64_t, int64_t) {
            return net.forward(torch::randn({4, 6})).square().mean();
          }};
  LoopOptions options;
  options.run_directory = folder.path;
  options.steps = 4;
  options.quiet = true;
  run(job, options);
  Net again(3);
  AdamW of_again(again.parameters(), torch::optim::AdamWOptions(1e-2));
  EXPECT_EQ(load_if_exists(folder.path / "checkpoints", again, of_again), 4);
  expect_same(tensors_of(again), tensors_of(net));
  take_step(again, of_again);
  save(folder.path / "checkpoints", again, of_again, 5);
  options.steps = 7;
  options.resume = true;
  EXPECT_EQ(run(job, options).steps, 7);
  EXPECT_EQ(net.seen.item<float>(), 4 + 1 + 2);
}

}  // namespace
}  // namespace flashstep
