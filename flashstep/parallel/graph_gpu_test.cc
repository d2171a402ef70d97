// Steps whose gradients are averaged, by NCCL and by copies, in CUDA graphs, on two GPUs.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/parallel/test_gpu_cases.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using torch::Tensor;

// What a step does, on memory that stays: rows of its own for every rank and step.
template <typename M>
class Training {
 public:
  Training(const Group& group, at::Device device, const Case& c)
      : group_(group),
        net_(make_net(device, c)),
        wrapped_(net_, group, c.options),
        x_(torch::empty({6, 10}, device)),
        y_(torch::empty({6, 5}, device)) {}

  void take_rows(int step) {
    torch::manual_seed(1000 * step + group_.rank());
    x_.copy_(torch::randn({6, 10}));
    y_.copy_(torch::randn({6, 5}));
  }
  void step() {
    net_->zero_grad();
    torch::mse_loss(wrapped_.forward(x_), y_).backward();
    wrapped_.finish_gradient_synchronization();
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : net_->parameters()) {
      if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.1);
    }
  }
  // What step() launches, recorded and not run.
  void record(at::cuda::CUDAGraph& graph) {
    torch::cuda::synchronize();
    group_.barrier();
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    std::string message;
    try {
      step();
    } catch (const UserError& error) {
      message = error.what();
    }
    try {
      graph.capture_end();
    } catch (const std::exception&) {
      static_cast<void>(cudaGetLastError());
      if (message.empty()) throw;
    }
    if (!message.empty()) throw UserError(message);
  }
  std::vector<Tensor> weights() const {
    std::vector<Tensor> result;
    for (const Tensor& parameter : net_->parameters()) result.push_back(parameter.detach().cpu());
    return result;
  }

 private:
  static std::shared_ptr<M> make_net(at::Device device, const Case& c) {
    auto net = make_module<M>(100, device);
    if (c.gradients) announce(net->parameters(), *c.gradients);
    return net;
  }
  const Group& group_;
  std::shared_ptr<M> net_;
  DistributedDataParallel<M> wrapped_;
  Tensor x_, y_;
};

constexpr int kLaunchedSteps = 3, kAllSteps = 7;

int64_t count_copies(at::cuda::CUDAGraph& graph) {
  size_t count = 0;
  C10_CUDA_CHECK(cudaGraphGetNodes(graph.raw_cuda_graph(), nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  C10_CUDA_CHECK(cudaGraphGetNodes(graph.raw_cuda_graph(), nodes.data(), &count));
  return std::count_if(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
    cudaGraphNodeType type;
    if (cudaGraphNodeGetType(node, &type) == cudaSuccess) return type == cudaGraphNodeTypeMemcpy;
    static_cast<void>(cudaGetLastError());  // a barrier, of a type that only the driver knows
    return false;
  });
}

template <typename M>
std::vector<Tensor> train(const Group& group, at::Device device, const Case& c,
                          int64_t* copies_in_graph) {
  const bool in_graph = copies_in_graph != nullptr;
  Training<M> training(group, device, c);
  at::cuda::CUDAGraph graph(/*keep_graph=*/true);
  for (int step = 0; step < kAllSteps; ++step) {
    training.take_rows(step);
    if (in_graph && step == kLaunchedSteps) {
      training.record(graph);
      graph.instantiate();
      *copies_in_graph = count_copies(graph);
    }
    const bool replays = in_graph && step >= kLaunchedSteps;
    replays ? graph.replay() : training.step();
  }
  torch::cuda::synchronize();
  group.barrier();  // nobody frees what others still send
  return training.weights();
}

template <typename M>
void expect_replays_do_what_steps_do(const Group& group, at::Device device) {
  int64_t of_nccl = -1;  // whose own are kernels
  for (const Case& c : gpu_cases()) {
    // c10d's Reducer has rules of its own; hosts must talk for unused parameters.
    if (c.options.strategy == Strategy::kTorch || c.options.allow_unused) continue;
    SCOPED_TRACE(c.name);
    int64_t copies = 0;
    const std::vector<Tensor> stepped = train<M>(group, device, c, nullptr);
    const std::vector<Tensor> replayed = train<M>(group, device, c, &copies);
    if (c.name == "bucketed") of_nccl = copies;
    EXPECT_TRUE(!c.options.peer_copies || copies > of_nccl) << copies;
    for (size_t i = 0; i < stepped.size(); ++i)
      EXPECT_TRUE(testing::same_bits(replayed[i], stepped[i])) << i;
  }
}

void on_a_stream(const std::function<void(const Group&, at::Device)>& body) {
  on_two_gpus([&](const Group& group, at::Device device) {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    torch::mm(torch::ones({1, 1}, device), torch::ones({1, 1}, device));  // no graph can load it
    body(group, device);
  });
}

TEST(GpuGraphRanks, ReplaysDoWhatStepsDo) {
  FLASHSTEP_NEED_GPUS(2);
  on_a_stream([](const Group& group, at::Device device) {
    expect_replays_do_what_steps_do<testing::PlainToy>(group, device);
    expect_replays_do_what_steps_do<testing::TiedToy>(group, device);
  });
}

TEST(GpuGraphRanks, WhatHostsMustTellEachOtherIsRefused) {
  FLASHSTEP_NEED_GPUS(2);
  on_a_stream([](const Group& group, at::Device device) {
    const auto refusal = [&](const std::function<void(ReducerOptions&)>& set, int steps) {
      Case c;
      set(c.options);
      Training<testing::PlainToy> training(group, device, c);
      for (int step = 0; step < steps; ++step) {
        training.take_rows(step);
        training.step();
      }
      training.take_rows(steps);
      std::string sentence = "nothing";
      {
        at::cuda::CUDAGraph graph;
        try {
          training.record(graph);
        } catch (const UserError& error) {
          sentence = error.what();
        }
      }
      // Nothing of it is left.
      c10::cuda::CUDACachingAllocator::emptyCache();
      for (int step = 0; step < 3; ++step) training.step();
      torch::cuda::synchronize();
      group.barrier();
      return sentence;
    };
    EXPECT_EQ(refusal([](ReducerOptions&) {}, 0),
              "[parallel] expected a CUDA graph of a step after a step as any, which counts "
              "gradients");
    EXPECT_EQ(refusal([](ReducerOptions& o) { o.debug = true; }, 2),
              "[parallel] expected a CUDA graph of a step without debug");
    EXPECT_EQ(refusal([](ReducerOptions& o) { o.allow_unused = true; }, 2),
              "[parallel] expected a CUDA graph of a step without allow_unused");
  });
}

// A divided optimizer's update, of gradients that are divided (flat) or not, by copies and by NCCL.
TEST(GpuGraphRanks, DividedOptimizersAreReplayed) {
  FLASHSTEP_NEED_GPUS(2);
  on_a_stream([](const Group& group, at::Device device) {
    for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
      for (const bool peer_copies : {true, false}) {
        SCOPED_TRACE(str(mode == ShardMode::kFlat, " ", peer_copies));
        const std::vector<Tensor> parameters = {torch::ones({1000}, device).requires_grad_(),
                                                torch::ones({77}, device).requires_grad_()};
        GradientReducer reducer(parameters, group);
        ShardedOptimizer<torch::optim::SGD> optimizer(
            parameters, torch::optim::SGDOptions(1), group,
            {.mode = mode,
             .reducer = mode == ShardMode::kFlat ? &reducer : nullptr,
             .peer_copies = peer_copies});
        const auto step = [&] {
          optimizer.zero_grad();
          (parameters[0].sum() + parameters[1].sum()).backward();
          reducer.finish_gradient_synchronization();
          optimizer.step();
        };
        for (int i = 0; i < 2; ++i) step();
        optimizer.zero_grad();
        torch::cuda::synchronize();
        group.barrier();
        {
          at::cuda::CUDAGraph graph;
          graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
          step();
          graph.capture_end();
          EXPECT_EQ(optimizer.transport(), peer_copies ? "copies" : "NCCL");
          for (int i = 0; i < 3; ++i) graph.replay();
          step();  // between replays
          graph.replay();
          torch::cuda::synchronize();
          group.barrier();
        }
        for (const Tensor& parameter : parameters) {
          EXPECT_TRUE(testing::same_bits(parameter.detach(), torch::full_like(parameter, -6.0)));
        }
      }
    }
  });
}

}  // namespace
}  // namespace flashstep
