// A training step captured in a CUDA graph: what changes from step to step must not be frozen in
// it.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/amp.h"
#include "flashstep/optim.h"

namespace flashstep {
namespace {

using torch::Tensor;

// Six steps of a small network under bf16 autocast with clipping and a learning rate that changes
// each step; the weights after them. With `captured`, the last four are replays of one graph.
std::vector<Tensor> train_small(bool captured) {
  torch::manual_seed(4);
  torch::nn::Sequential net(torch::nn::Linear(32, 64), torch::nn::GELU(), torch::nn::Linear(64, 8));
  net->to(torch::kCUDA);
  const Tensor x = torch::randn({16, 32}).cuda(), y = torch::randn({16, 8}).cuda();
  AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.01));
  optimizer.allocate_state();
  const auto set_rate = [&](int step) {
    for (auto& group : optimizer.param_groups()) {
      static_cast<torch::optim::AdamWOptions&>(group.options()).lr(0.01 * (step + 1));
    }
    optimizer.refresh_learning_rates();
  };
  const Tensor never = torch::zeros({}, torch::kCUDA);
  const auto step = [&] {
    // Gradients keep their memory: a graph has addresses in it.
    for (Tensor& p : net->parameters()) {
      if (p.grad().defined()) p.mutable_grad().zero_();
    }
    Tensor loss;
    {
      const AutocastGuard autocast(torch::kCUDA, torch::kBFloat16, AutocastGuard::Cache::kOff);
      loss = torch::mse_loss(net->forward(x).to(torch::kFloat), y);
    }
    loss.backward();
    const std::vector<Tensor> gradients = gradients_of(net->parameters());
    clip_to_norm(gradients, grad_norm(gradients), 0.5);
    optimizer.step_unless(never);
  };

  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  for (int i = 0; i < 2; ++i) {
    set_rate(i);
    step();
  }
  at::cuda::CUDAGraph graph;
  for (int i = 2; i < 6; ++i) {
    set_rate(i);
    if (captured && i == 2) {
      torch::cuda::synchronize();
      graph.capture_begin();
      step();
      graph.capture_end();
    }
    captured ? graph.replay() : step();
  }
  torch::cuda::synchronize();
  std::vector<Tensor> weights;
  for (const Tensor& p : net->parameters()) weights.push_back(p.detach().cpu());
  return weights;
}

TEST(GpuGraphTest, ReplaysDoWhatStepsDo) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
  const std::vector<Tensor> stepped = train_small(false), replayed = train_small(true);
  for (size_t i = 0; i < stepped.size(); ++i) {
    EXPECT_TRUE(torch::equal(stepped[i], replayed[i])) << "weight " << i;
  }
}

}  // namespace
}  // namespace flashstep
