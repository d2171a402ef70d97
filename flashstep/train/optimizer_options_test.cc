// Checkpoints keep the options of AdamW's groups, and no state is left behind.
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>

#include "flashstep/checkpoint.h"
#include "flashstep/data_parallel.h"
#include "flashstep/fully_sharded.h"
#include "flashstep/loop.h"
#include "flashstep/optim.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"
#include "flashstep/train/parallelize.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;
using testing::expect_sentence;
using torch::Tensor;
using torch::optim::AdamWOptions;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

class OptimizerOptions : public ::testing::Test {
 protected:
  OptimizerOptions() { fs::remove_all(path_); }
  ~OptimizerOptions() override { fs::remove_all(path_); }
  const fs::path path_ = fs::temp_directory_path() / str("flashstep_options_", ::getpid());
};

// Of a Linear: the weight decays, the bias does not.
Groups two_groups(torch::nn::Linear& net, double rate) {
  Groups groups;
  groups.emplace_back(std::vector<Tensor>{net->weight},
                      std::make_unique<AdamWOptions>(AdamWOptions(rate).weight_decay(0.1)));
  groups.emplace_back(std::vector<Tensor>{net->bias},
                      std::make_unique<AdamWOptions>(AdamWOptions(rate).weight_decay(0)));
  return groups;
}

const AdamWOptions& options_of(const torch::optim::Optimizer& optimizer, size_t group = 0) {
  return static_cast<const AdamWOptions&>(optimizer.param_groups()[group].options());
}

// Every option has another value than those that are made anew.
AdamWOptions lowered() {
  return AdamWOptions(1.0 / 3000).betas({0.8, 0.9}).eps(1e-6).weight_decay(0.25).amsgrad(true);
}

void expect_come_back(const Environment& environment, const fs::path& path) {
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(
      DistributedDataParallel<torch::nn::LinearImpl>&)>;
  const Group group(environment);
  const std::vector<Make> makes = {
      [](auto& model) { return std::make_unique<AdamW>(model.parameters(), AdamWOptions(0.1)); },
      [](auto& model) { return std::make_unique<ShardedAdamW>(model, AdamWOptions(0.1)); },
      [](auto& model) {
        return std::make_unique<ShardedAdamW>(model, AdamWOptions(0.1),
                                              ShardOptions{.mode = ShardMode::kFlat});
      },
      [](auto& model) {
        return std::make_unique<ShardedOptimizer<AdamW>>(model, AdamWOptions(0.1));
      }};
  for (size_t i = 0; i < makes.size(); ++i) {
    SCOPED_TRACE(i);
    DistributedDataParallel model(torch::nn::Linear(4, 4), group);
    const auto optimizer = makes[i](model);
    optimizer->param_groups()[0].set_options(std::make_unique<AdamWOptions>(lowered()));
    model(torch::ones({2, 4})).sum().backward();
    optimizer->step();
    save(path / str(i), model, *optimizer, 1);
    for (const Make& make : makes) {  // however it is divided
      DistributedDataParallel other(torch::nn::Linear(4, 4), group);
      const auto again = make(other);
      EXPECT_EQ(load_if_exists(path / str(i), other, *again), 1);
      EXPECT_TRUE(options_of(*again) == lowered());
      other(torch::ones({2, 4})).sum().backward();
      EXPECT_NO_THROW(again->step());
    }
  }
  FullyShardedDataParallel model(torch::nn::Linear(4, 4), group);
  AdamW optimizer(model.parameters(), AdamWOptions(0.1));
  EXPECT_EQ(load_if_exists(path / "0", model, optimizer), 1);
  EXPECT_TRUE(options_of(optimizer) == lowered());
  save(path / "full", model, optimizer, 2);
  AdamW again(model.parameters(), AdamWOptions(0.1));
  EXPECT_EQ(load_if_exists(path / "full", model, again), 2);
  EXPECT_TRUE(options_of(again) == lowered());
}

TEST_F(OptimizerOptions, ComeBackHoweverTheStateIsDivided) {
  testing::run_ranks(2, [this](const Environment& environment) {
    expect_come_back(environment,
                     fs::temp_directory_path() / str("flashstep_options_", ::getppid()));
  });
}

TEST_F(OptimizerOptions, ComeBackToEachGroup) {
  torch::nn::Linear net(4, 4);
  AdamW optimizer(two_groups(net, 0.1));
  for (auto& group : optimizer.param_groups()) group.options().set_lr(0.003);
  save(path_, net, optimizer, 1);
  AdamW again(two_groups(net, 0.5));
  load_if_exists(path_, net, again);
  EXPECT_EQ(options_of(again, 0).lr(), 0.003);
  EXPECT_EQ(options_of(again, 1).lr(), 0.003);
  EXPECT_EQ(options_of(again, 0).weight_decay(), 0.1);
  EXPECT_EQ(options_of(again, 1).weight_decay(), 0);
  // What cannot be theirs is refused, and nothing changed.
  const Tensor before = net->weight.detach().clone();
  net->weight.detach().fill_(7);
  AdamW one(net->parameters(), AdamWOptions(0.5));
  expect_sentence([&] { load_if_exists(path_, net, one); }, {"2 parameter groups", "got 1"});
  Groups turned = two_groups(net, 0.5);
  std::swap(turned[0].params(), turned[1].params());
  AdamW other(turned);
  expect_sentence([&] { load_if_exists(path_, net, other); }, {"bias", "group 0", "group 1"});
  EXPECT_EQ(net->weight.min().item<float>(), 7);
  EXPECT_EQ(options_of(one).lr(), 0.5);
}

// LibTorch's optimizers know a parameter's state by its place.
TEST_F(OptimizerOptions, StateOfAnotherPlaceIsRefused) {
  torch::nn::Linear first(4, 4), second(4, 4);
  torch::nn::Sequential net(first, second);
  const auto of = [](std::vector<Tensor> parameters) {
    return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(0.1));
  };
  auto saved = of({first->weight, second->weight});
  net->forward(torch::ones({2, 4})).sum().backward();
  saved.step();
  save(path_, net, saved, 1);
  auto turned = of({second->weight, first->weight});
  expect_sentence([&] { load_if_exists(path_, net, turned); },
                  {"0.weight", "parameter 0", "group 0", "got 1.weight"});
  EXPECT_TRUE(turned.state().empty());
  auto same = of({first->weight, second->weight});
  EXPECT_EQ(load_if_exists(path_, net, same), 1);
}

// As torch's optimizers do in the library's loop; a run whose config has them says otherwise.
TEST_F(OptimizerOptions, ComeBackInTheLoop) {
  torch::nn::Linear net(4, 4);
  LoopOptions loop;
  loop.run_directory = path_;
  loop.steps = 2;
  loop.quiet = true;
  const auto job_of = [&](AdamW& optimizer) {
    return Job{*net, optimizer, [&](int64_t, int64_t) {
                 return net->forward(torch::ones({2, 4})).sum();
               }};
  };
  AdamW optimizer(net->parameters(), AdamWOptions(0.1));
  optimizer.param_groups()[0].options().set_lr(0.003);
  run(job_of(optimizer), loop);
  loop.resume = true;
  loop.steps = 3;
  AdamW again(net->parameters(), AdamWOptions(0.1));
  run(job_of(again), loop);
  EXPECT_EQ(options_of(again).lr(), 0.003);
  const auto state_at = [&](int64_t step) {
    return nlohmann::ordered_json::parse(
        load_checkpoint(checkpoint_directory(path_ / "checkpoints", step)).state_json);
  };
  EXPECT_EQ(state_at(3).at("optimizer").at("groups").at(0).at("params"),
            (std::vector<std::string>{"weight", "bias"}));  // as Python's are written
  AdamW configured(net->parameters(), AdamWOptions(0.1));
  Job of_config = job_of(configured);
  of_config.keeps_options = false;
  loop.steps = 4;
  run(of_config, loop);
  EXPECT_EQ(options_of(configured).lr(), 0.1);
  EXPECT_FALSE(state_at(4).contains("optimizer"));  // as in those of earlier versions
  AdamW of_earlier(net->parameters(), AdamWOptions(0.2));
  loop.steps = 5;
  run(job_of(of_earlier), loop);
  EXPECT_EQ(options_of(of_earlier).lr(), 0.2);
}

// A parameter that no module has would begin anew, and so would its moments.
TEST_F(OptimizerOptions, StateOfOthersParametersIsRefused) {
  testing::run_ranks(2, [](const Environment& environment) {
    const fs::path path = fs::temp_directory_path() / str("flashstep_options_", ::getppid());
    const Group group(environment);
    DistributedDataParallel model(torch::nn::Linear(4, 4), group);
    const Tensor temperature = torch::ones({}).requires_grad_();
    std::vector<Tensor> parameters = model.parameters();
    parameters.push_back(temperature);
    AdamW whole(parameters, AdamWOptions(0.1));
    ShardedAdamW sharded(parameters, AdamWOptions(0.1), group);
    torch::optim::Adam torchs(parameters, torch::optim::AdamOptions(0.1));
    for (torch::optim::Optimizer* optimizer :
         std::initializer_list<torch::optim::Optimizer*>{&whole, &sharded, &torchs}) {
      (model(torch::ones({2, 4})) * temperature).sum().backward();
      optimizer->step();
      optimizer->zero_grad();
      expect_sentence([&] { save(path, model, *optimizer, 1); },
                      {"1 ", "not the module's", "register_parameter"});
      expect_sentence([&] { load_if_exists(path, model, *optimizer); }, {"not the module's"});
      EXPECT_EQ(group.all_reduce(1, Reduce::kSum), 2);  // and all go on
    }
    Job job{*model.module(), whole, [](int64_t, int64_t) { return torch::ones({}); }};
    job.parallel = data_parallelism(*model.module(), group);
    LoopOptions loop;
    loop.run_directory = path / "run";
    expect_sentence([&] { run(job, loop); }, {"not the module's"});
    EXPECT_FALSE(fs::exists(path / "run"));
  });
}

// LibTorch's LBFGS has none: rank 0 alone asks it for its state.
TEST_F(OptimizerOptions, AnOptimizerThatCannotBeSavedIsRefusedOnAllRanks) {
  testing::run_ranks(2, [](const Environment& environment) {
    const fs::path path = fs::temp_directory_path() / str("flashstep_options_", ::getppid());
    const Group group(environment);
    DistributedDataParallel model(torch::nn::Linear(4, 4), group);
    torch::optim::LBFGS optimizer(model.parameters(), torch::optim::LBFGSOptions(0.1).max_iter(3));
    optimizer.step([&] {
      optimizer.zero_grad();
      const Tensor loss = model(torch::ones({2, 4})).square().sum();
      loss.backward();
      return loss;
    });
    expect_sentence([&] { save(path, model, optimizer, 1); },
                    {"expected an optimizer that LibTorch can save", "LBFGS"});
    EXPECT_EQ(group.all_reduce(1, Reduce::kSum), 2);  // and all go on
  });
}

}  // namespace
}  // namespace flashstep
