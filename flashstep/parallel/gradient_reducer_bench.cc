// Step time of every strategy beside a step without communication, taking turns on the same ranks:
//   parallel_gradient_reducer_bench            2 ranks on this machine, CPU and Gloo
//   flashstep launch -n 4 -- ./parallel_gradient_reducer_bench
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/base/text.h"
#include "flashstep/comm/launch.h"
#include "flashstep/data_parallel.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/stats.h"

namespace flashstep {
namespace {

constexpr int kLayers = 8;
constexpr int64_t kWidth = 512;  // 8 x 1 MB of weights
constexpr int64_t kRows = 128;
constexpr int kRounds = 40, kWarmup = 5;

torch::nn::Sequential make_net() {
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(kWidth, kWidth));
    net->push_back(torch::nn::ReLU());
  }
  return net;
}

struct Implementation {
  std::string name;
  torch::nn::Sequential net = make_net();
  std::unique_ptr<DistributedDataParallel<torch::nn::SequentialImpl>> wrapped = nullptr;
  std::unique_ptr<torch::optim::SGD> optimizer = nullptr;
  std::vector<double> seconds = {};
};

void step(Implementation& implementation, const torch::Tensor& x) {
  implementation.optimizer->zero_grad();
  if (implementation.wrapped) {
    implementation.wrapped->forward(x).pow(2).mean().backward();
    implementation.wrapped->finish_gradient_synchronization();
  } else {
    implementation.net->forward(x).pow(2).mean().backward();
  }
  implementation.optimizer->step();
}

void run(const Environment& environment) {
  const Group group(environment);
  torch::set_num_threads(1);
  std::vector<Implementation> implementations;
  implementations.push_back({"no communication"});
  const auto add = [&](Strategy strategy, double megabytes, const std::string& name) {
    implementations.push_back({name});
    ReducerOptions options;
    options.strategy = strategy;
    options.bucket_megabytes = megabytes;
    implementations.back().wrapped =
        std::make_unique<DistributedDataParallel<torch::nn::SequentialImpl>>(
            implementations.back().net, group, options);
  };
  for (const char* name : {"naive", "flat", "overlapped"}) add(strategy_by_name(name), 1, name);
  for (const double megabytes : {1.0, 2.0, 4.0}) {
    add(Strategy::kBucketed, megabytes, str("bucketed, ", megabytes, " MB"));
    add(Strategy::kTorch, megabytes, str("torch, ", megabytes, " MB"));
  }
  for (Implementation& implementation : implementations) {
    implementation.optimizer =
        std::make_unique<torch::optim::SGD>(implementation.net->parameters(), 0.01);
  }
  const torch::Tensor x = torch::randn({kRows, kWidth});
  for (int round = 0; round < kWarmup + kRounds; ++round) {
    for (Implementation& implementation : implementations) {
      group.barrier();
      const double start = measure::steady_seconds();
      step(implementation, x);
      const double own = measure::steady_seconds() - start;
      if (round >= kWarmup) {
        implementation.seconds.push_back(group.all_reduce(own, Reduce::kMax));
      }
    }
  }
  if (!group.is_first()) return;
  const double alone = measure::median(implementations.front().seconds);
  std::printf("%d ranks, %d layers of %d x %d float32, %d rows, one thread a rank, %d rounds\n",
              group.world_size(), kLayers, static_cast<int>(kWidth), static_cast<int>(kWidth),
              static_cast<int>(kRows), kRounds);
  std::printf("%-18s %9s %9s %9s %9s\n", "strategy", "median ms", "p10", "p90", "added %");
  for (const Implementation& implementation : implementations) {
    const std::vector<double>& seconds = implementation.seconds;
    const double median = measure::median(seconds);
    std::printf("%-18s %9.3f %9.3f %9.3f %9.1f\n", implementation.name.c_str(), median * 1e3,
                measure::quantile(seconds, 0.1) * 1e3, measure::quantile(seconds, 0.9) * 1e3,
                (median / alone - 1) * 100);
  }
}

}  // namespace
}  // namespace flashstep

int main() {
  const flashstep::Environment environment = flashstep::read_environment();
  if (environment.world_size == 1) {
    flashstep::LaunchOptions options;
    options.ranks = 2;
    options.command = {"/proc/self/exe"};
    options.label = false;
    return flashstep::launch(options);
  }
  flashstep::run(environment);
  return 0;
}
