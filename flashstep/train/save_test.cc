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

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using testing::expect_sentence;
using testing::same_bits;
using torch::Tensor;

struct Net : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(6, 8))};
  torch::nn::Dropout dropout{register_module("dropout", torch::nn::Dropout(0.2))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(8, 6))};
  Tensor seen = register_buffer("seen", torch::zeros({}));
  explicit Net(uint64_t seed = 1) {
    torch::manual_seed(seed);
    for (const Tensor& p : parameters()) torch::nn::init::normal_(p);
  }
  Tensor forward(const Tensor& x) {
    seen += 1;
    return out(dropout(torch::relu(in(x))));
  }
};

// One directory for all ranks of a test, which begins without it.
class Folder {
 public:
  explicit Folder(const std::string& name, bool is_owner = true)
      : path(fs::temp_directory_path() /
             str("flashstep_save_", is_owner ? ::getpid() : ::getppid(), "_", name)),
        is_owner_(is_owner) {
    if (is_owner_) fs::remove_all(path);
  }
  ~Folder() {
    if (is_owner_) fs::remove_all(path);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path path;

 private:
  bool is_owner_;
};

using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;

template <typename Model>
void take_step(Model& model, torch::optim::Optimizer& optimizer, int rank = 0) {
  const Tensor x = torch::randn({4, 6}) + rank;  // of the generators that a checkpoint keeps
  model.forward(x).square().mean().backward();
  clip_grad_norm(optimizer, 0.5);
  optimizer.step();
  optimizer.zero_grad();
}

std::vector<Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<Tensor> all;
  for (const Tensor& t : module.parameters()) all.push_back(t.detach().clone());
  for (const Tensor& t : module.buffers()) all.push_back(t.clone());
  return all;
}

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << i;
}

OptimizerPtr make(int kind, const std::vector<Tensor>& parameters) {
  if (kind == 0) return std::make_unique<AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
  if (kind == 1)
    return std::make_unique<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-2));
}

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
