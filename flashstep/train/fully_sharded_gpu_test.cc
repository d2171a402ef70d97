// Fully sharded modules on GPUs, by copies and by NCCL, against a single process.
#include <algorithm>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include "flashstep/fully_sharded.h"
#include "flashstep/optim.h"
#include "flashstep/parallel/test_hard_net.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpu_ranks.h"

namespace flashstep {
namespace {

using testing::close;
using testing::same_bits;
using torch::Tensor;

// Whether the modules' parameters are made on the CPU, as those of models that are larger than a
// GPU are, or moved to the GPU before they are divided.
enum class Made { kOnCpu, kOnGpu };

void trains_as_alone(const Group& group, at::Device device, bool peer_copies, int shard_ranks = 0,
                     Made made = Made::kOnGpu) {
  constexpr int64_t kSteps = 12;
  at::globalContext().setAllowTF32CuBLAS(false);
  for (ShardCase c : shard_cases()) {
    SCOPED_TRACE(str(c.name, peer_copies ? ", by copies" : ", by NCCL"));
    const auto alone = train_alone(*make_hard_net(), kSteps);
    c.options.peer_copies = peer_copies;
    c.options.shard_ranks = shard_ranks;
    const auto net = make_hard_net();
    if (made == Made::kOnGpu) net->to(device);
    if (made == Made::kOnCpu) c.options.device = device;
    net->recomputed = c.recomputed;
    FullyShardedDataParallel model(net, group, c.options);
    for (const Tensor& shard : model.parameters()) EXPECT_EQ(shard.device(), device);
    const bool sends = shard_ranks != 1 && group.world_size() > 1;
    EXPECT_EQ(model.units().transport(), !sends ? "" : peer_copies ? "copies" : "NCCL");
    EXPECT_EQ(model.units().can_be_captured(), peer_copies && sends);
    AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
    train_sharded(model, optimizer, kSteps);
    for (const auto& [name, tensor] : model.gather_full_parameters())
      EXPECT_TRUE(close(tensor.cpu(), alone.at(name), 2e-4, 1e-3)) << name;
    if (c.options.shard) continue;
    const Tensor gain = net->block(0).gain.detach().flatten().cpu();
    Tensor first = gain.clone();
    group.broadcast(first, 0);
    EXPECT_TRUE(same_bits(gain, first)) << "what is not divided has the same bits on all ranks";
  }
}

TEST(GpuFullySharded, TrainsAsASingleProcessDoes) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_on_gpus(2, [](const Group& group, at::Device device) {
    trains_as_alone(group, device, true);
    trains_as_alone(group, device, false);
  });
}

TEST(GpuFullySharded, TrainsWhatWasMadeOnTheCpu) {
  FLASHSTEP_NEED_GPUS(1);
  testing::run_on_gpus(std::min(testing::gpu_count(), 2),
                       [](const Group& group, at::Device device) {
                         trains_as_alone(group, device, true, 0, Made::kOnCpu);
                         trains_as_alone(group, device, false, 0, Made::kOnCpu);
                       });
}

TEST(GpuFullySharded, TrainsOnFourGpus) {
  FLASHSTEP_NEED_GPUS(4);
  testing::run_on_gpus(4, [](const Group& group, at::Device device) {
    trains_as_alone(group, device, true);
    trains_as_alone(group, device, false);
    trains_as_alone(group, device, true, /*shard_ranks=*/2);
    trains_as_alone(group, device, false, /*shard_ranks=*/2);
  });
}

TEST(GpuFullySharded, TrainsInReplicasOfOneGpu) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_on_gpus(2, [](const Group& group, at::Device device) {
    trains_as_alone(group, device, false, /*shard_ranks=*/1);
  });
}

struct WideBlock : torch::nn::Module {
  torch::nn::Linear up{register_module("up", torch::nn::Linear(64, 96))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(96, 64))};
  Tensor forward(const Tensor& x) { return x + down(torch::relu(up(x))); }
};
struct WideNet : torch::nn::Module {
  torch::nn::Sequential blocks{register_module("blocks", torch::nn::Sequential())};
  WideNet() {
    for (int i = 0; i < 4; ++i) blocks->push_back(std::make_shared<WideBlock>());
  }
  Tensor forward(const Tensor& x) { return run(blocks, x); }
};

// Copies send what NCCL sends, and sum in the same order: between two ranks the bits are the same.
TEST(GpuFullySharded, CopiesHaveTheBitsOfCollectives) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_on_gpus(2, [](const Group& group, at::Device device) {
    for (const bool narrow : {false, true}) {
      std::vector<NamedTensors> weights;
      for (const bool copies : {true, false}) {
        torch::manual_seed(5);
        const auto net = std::make_shared<WideNet>();
        net->to(device);
        FullyShardOptions options;
        options.peer_copies = copies;
        if (narrow) options.compute_dtype = at::kBFloat16;
        FullyShardedDataParallel model(net, group, options);
        AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
        for (int step = 0; step < 5; ++step) {
          torch::manual_seed(step * 2 + group.rank());
          const Tensor x = torch::randn({32, 64}).to(device, narrow ? at::kBFloat16 : at::kFloat);
          model(x).to(at::kFloat).square().mean().backward();
          optimizer.step();
          optimizer.zero_grad();
        }
        weights.push_back(model.gather_full_parameters());
      }
      for (size_t i = 0; i < weights[0].size(); ++i) {
        EXPECT_TRUE(same_bits(weights[0][i].second, weights[1][i].second))
            << weights[0][i].first << (narrow ? " bf16" : " fp32");
      }
    }
  });
}

// An update that comes late: backward goes on meanwhile, and wants memory.
struct SlowAdamW : AdamW {
  using AdamW::AdamW;
  void step_unless(const Tensor& found_inf) override {
    at::cuda::sleep(20'000'000);
    AdamW::step_unless(found_inf);
  }
};

TEST(GpuFullySharded, BackwardGoesOnBesideUpdatesWithTheSameBits) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_on_gpus(2, [](const Group& group, at::Device device) {
    for (const bool copies : {true, false}) {
      std::vector<NamedTensors> weights;
      for (const bool in_backward : {false, true}) {
        torch::manual_seed(5);
        const auto net = std::make_shared<WideNet>();
        net->to(device);
        FullyShardOptions options;
        options.peer_copies = copies;
        FullyShardedDataParallel model(net, group, options);
        SlowAdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
        if (in_backward) model.step_in_backward(optimizer);
        for (int step = 0; step < 4; ++step) {
          torch::manual_seed(step * 2 + group.rank());
          model(torch::randn({32, 64}).to(device)).square().mean().backward();
          optimizer.step();
          optimizer.zero_grad();
        }
        weights.push_back(model.gather_full_parameters());
        group.barrier();  // nobody ends while others still send
      }
      for (size_t i = 0; i < weights[0].size(); ++i) {
        EXPECT_TRUE(same_bits(weights[0][i].second, weights[1][i].second))
            << weights[0][i].first << (copies ? " by copies" : " by NCCL");
      }
    }
  });
}

// Forward and backward in a CUDA graph, by copies, several replays: as launched.
void replays_as_launched(const Group& group, at::Device device, int shard_ranks = 0) {
  std::vector<NamedTensors> weights;
  for (const bool recorded : {false, true}) {
    torch::manual_seed(5);
    const auto net = std::make_shared<WideNet>();
    net->to(device);
    FullyShardedDataParallel model(net, group,
                                   {.compute_dtype = at::kBFloat16, .shard_ranks = shard_ranks});
    ASSERT_TRUE(model.units().can_be_captured());
    AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
    const Tensor x = torch::zeros({32, 64}, at::TensorOptions(device).dtype(at::kBFloat16));
    const auto step = [&] {
      optimizer.zero_grad();
      model(x).to(at::kFloat).square().mean().backward();
      optimizer.step();
    };
    const auto stage = [&](int number) {
      torch::manual_seed(number * 2 + group.rank());
      x.copy_(torch::randn({32, 64}));
    };
    c10::cuda::device_synchronize();
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    for (int number = 0; number < 3; ++number) {
      stage(number);
      step();
    }
    at::cuda::CUDAGraph graph;
    if (recorded) {
      optimizer.zero_grad();
      c10::cuda::device_synchronize();
      graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
      step();
      graph.capture_end();
    }
    for (int number = 3; number < 8; ++number) {
      stage(number);
      if (recorded) {
        graph.replay();
      } else {
        step();
      }
    }
    c10::cuda::device_synchronize();
    weights.push_back(model.gather_full_parameters());
    group.barrier();  // nobody ends while others still send
  }
  for (size_t i = 0; i < weights[0].size(); ++i)
    EXPECT_TRUE(same_bits(weights[0][i].second, weights[1][i].second)) << weights[0][i].first;
}

TEST(GpuFullySharded, ReplaysDoWhatStepsDo) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_on_gpus(
      2, [](const Group& group, at::Device device) { replays_as_launched(group, device); });
}

TEST(GpuFullySharded, ReplaysOfFourInReplicasDoWhatStepsDo) {
  FLASHSTEP_NEED_GPUS(4);
  testing::run_on_gpus(4, [](const Group& group, at::Device device) {
    replays_as_launched(group, device, /*shard_ranks=*/2);
  });
}

}  // namespace
}  // namespace flashstep
