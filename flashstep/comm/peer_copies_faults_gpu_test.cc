// Copies from GPU to GPU: what becomes of those that wait for a lost rank.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include "flashstep/comm/peer_copies.h"
#include "flashstep/comm/peer_mean.h"
#include "flashstep/comm/test_gpu_copies.h"
#include "flashstep/error.h"
#include "flashstep/testing/gpu_ranks.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::over_nccl;
using testing::Ranks;

// A rank that is silent for 3 s is lost; the others say so in their "[training]", or end after the
// grace without it.
GroupOptions ended_by_watch(std::chrono::seconds grace) {
  GroupOptions options = over_nccl();
  options.timeouts.silence = std::chrono::seconds(3);
  options.timeouts.grace = grace;
  options.on_stuck = end_process;
  return options;
}

void strike(int signal, bool after_barrier) {
  testing::start_ranks(
      2,
      [&](const Environment& environment) {
        const at::Device device = testing::take_gpu(environment);
        const Group group(environment, ended_by_watch(std::chrono::seconds(20)));
        const auto copies = make_peer_copies(group, device);
        const Tensor flat = at::zeros({2'000'000}, at::TensorOptions(device).dtype(at::kFloat));
        require(copies != nullptr && copies->share({flat}), "expected copies");
        for (int step = 0;; ++step) {
          const bool struck = step == 5 && !group.is_first();
          if (struck && !after_barrier) raise(signal);
          copies->stream_barrier();
          push_everywhere(*copies, 0, flat.slice(0, 0, 1'000'000), 0);
          if (struck && after_barrier) {
            flat.sum().item<float>();  // the barrier is over by now
            raise(signal);
          }
          copies->stream_barrier();
          group.guarded("training", [&] { return flat.sum().item<float>(); });
          group.check();
        }
      },
      [&](Ranks& ranks) {
        const auto start = std::chrono::steady_clock::now();
        EXPECT_TRUE(ranks.wait_for_all(40, /*excepted=*/signal == SIGSTOP ? 1 : -1))
            << ranks.all_output();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        std::printf("ended %.1f s after the start: %s\n", took.count(), ranks.output(0).c_str());
        EXPECT_EQ(ranks.exit_code(0), 1) << ranks.all_output();
        EXPECT_TRUE(std::regex_search(
            ranks.output(0),
            std::regex("flashstep: \\[training\\] rank 1 \\(.*\\) has not been heard for")))
            << ranks.all_output();
      });
}

TEST(GpuPeerCopiesFaults, AStoppedRankIsNamed) {
  FLASHSTEP_NEED_GPUS(2);
  strike(SIGSTOP, /*after_barrier=*/false);
}

TEST(GpuPeerCopiesFaults, AKilledRankIsNamed) {
  FLASHSTEP_NEED_GPUS(2);
  strike(SIGKILL, /*after_barrier=*/false);
}

TEST(GpuPeerCopiesFaults, ARankThatIsStoppedInTheMiddleIsNamed) {
  FLASHSTEP_NEED_GPUS(2);
  strike(SIGSTOP, /*after_barrier=*/true);
}

// The host has launched all that it waits for; each barrier in a graph must be ended for itself.
TEST(GpuPeerCopiesFaults, AStoppedRankIsNamedInReplays) {
  FLASHSTEP_NEED_GPUS(2);
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        const at::Device device = testing::take_gpu(environment);
        const Group group(environment, ended_by_watch(std::chrono::seconds(3)));
        const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
        const auto peers = make_peer_mean(group, device, 1'000'000);
        require(peers != nullptr, "expected means by copies");
        const Tensor tensor = at::ones({1'000'000}, at::TensorOptions(device));
        peers->mean({tensor});
        at::cuda::CUDAGraph graph;
        graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
        require(peers->takes({tensor}), "expected means in a graph");
        for (int i = 0; i < 100; ++i) peers->mean({tensor});
        graph.capture_end();
        for (int step = 0;; ++step) {
          if (step == 5 && !group.is_first()) raise(SIGSTOP);
          for (int i = 0; i < 6; ++i) graph.replay();
          group.guarded("training", [&] { return tensor.sum().item<float>(); });
          group.check();
        }
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(40, /*excepted=*/1)) << ranks.all_output();
        EXPECT_EQ(ranks.exit_code(0), 1) << ranks.all_output();
        EXPECT_TRUE(std::regex_search(
            ranks.output(0),
            std::regex("flashstep: \\[training\\] rank 1 \\(.*\\) has not been heard for")))
            << ranks.all_output();
      });
}

// Survivors learn of the loss one after the other; who does not know yet still waits, and sees no
// number that is not the mean.
TEST(GpuPeerCopiesFaults, NobodyGoesOnBeforeItKnows) {
  FLASHSTEP_NEED_GPUS(2);
  testing::start_ranks(
      3,
      [](const Environment& environment) {
        const at::Device device = testing::take_gpu(environment);
        GroupOptions options = ended_by_watch(std::chrono::seconds(20));
        options.shared_gpus = testing::over_copies(3).shared_gpus;
        const Group group(environment, options);
        const auto peers = make_peer_mean(group, device, 1'000'000);
        require(peers != nullptr, "expected means by copies");
        for (int step = 0;; ++step) {
          if (step == 5 && group.rank() == 2) raise(SIGSTOP);
          const Tensor own = late_one(device) * (group.rank() + 3.0 * step);
          const std::vector<Tensor> tensors = {own.expand({500'000}).contiguous()};
          peers->mean(tensors);
          const auto sum =
              group.guarded("training", [&] { return tensors[0].sum().item<double>(); });
          group.check();
          const double expected = 500'000 * (1 + 3.0 * step);
          if (sum != expected) std::_Exit(77);
        }
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(60, /*excepted=*/2)) << ranks.all_output();
        for (const int rank : {0, 1}) {
          EXPECT_EQ(ranks.exit_code(rank), 1) << "77: a wrong mean\n" << ranks.all_output();
          EXPECT_TRUE(std::regex_search(ranks.output(rank),
                                        std::regex("\\[training\\] rank 2 \\(.*\\) has not been "
                                                   "heard")))
              << "not released, but ended after the grace\n"
              << ranks.all_output();
        }
      });
}

// Its stream waits for a barrier that the others never launch, and nothing ends its process for it.
TEST(GpuPeerCopiesFaults, ARankThatThrowsEnds) {
  FLASHSTEP_NEED_GPUS(2);
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        const at::Device device = testing::take_gpu(environment);
        try {
          const Group group(environment, over_nccl());
          const auto copies = make_peer_copies(group, device);
          require(copies != nullptr, "expected copies");
          copies->stream_barrier();
          if (!group.is_first()) {
            copies->stream_barrier();
            throw UserError("a mistake of this rank");
          }
          std::this_thread::sleep_for(std::chrono::seconds(2));
          group.barrier();
        } catch (const UserError&) {  // by now the stream waits no more
          c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
          throw;
        }
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(40)) << ranks.all_output();
        EXPECT_EQ(ranks.exit_code(0), 1) << ranks.all_output();
        EXPECT_EQ(ranks.exit_code(1), 2) << ranks.all_output();
      });
}

// The stream of a rank that ends runs on, past barriers that the others have not come to, and tells
// them of it: they hold until they have heard that it ended, and take nothing of it for a mean.
TEST(GpuPeerCopiesFaults, WhatAnEndedRankTellsIsNotBelieved) {
  FLASHSTEP_NEED_GPUS(2);
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        const at::Device device = testing::take_gpu(environment);
        GroupOptions options = over_nccl();
        options.on_stuck = end_process;
        const Group group(environment, options);
        const auto peers = make_peer_mean(group, device, 4'000'000);
        require(peers != nullptr, "expected means by copies");
        constexpr int kSteps = 5;
        const auto mean = [&](double own) {
          const Tensor tensor = at::full({1'000'000}, own, at::TensorOptions(device));
          peers->mean({tensor});
          return tensor;
        };
        mean(1).sum().item<float>();
        if (!group.is_first()) {
          for (int step = 0; step < kSteps; ++step) mean(10.0 + step);
          throw UserError("a mistake of this rank");
        }
        late_one(device);  // the other has ended by then, and this one has hardly heard of it
        Tensor wrong = at::zeros({}, at::TensorOptions(device).dtype(at::kLong));
        for (int step = 0; step < kSteps; ++step) wrong += (mean(20.0 + step) != 15 + step).sum();
        const auto count = group.guarded("training", [&] { return wrong.item<int64_t>(); });
        group.check();
        if (count != 0) std::_Exit(77);
        group.barrier();  // rank 0 was faster than the other's end
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(60)) << ranks.all_output();
        EXPECT_EQ(ranks.exit_code(0), 1) << "77: false means\n" << ranks.all_output();
        EXPECT_NE(ranks.output(0).find("rank 1 ended with an error of its own"), std::string::npos)
            << ranks.all_output();
        EXPECT_EQ(ranks.exit_code(1), 2) << ranks.all_output();
      });
}

// Heard, but it does not come: the one that waits has launched more.
TEST(GpuPeerCopiesFaults, WhoDoesNotComeIsNamed) {
  FLASHSTEP_NEED_GPUS(2);
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        const at::Device device = testing::take_gpu(environment);
        GroupOptions options = over_nccl();
        options.timeouts.collective = std::chrono::seconds(4);
        options.on_stuck = end_process;
        const Group group(environment, options);
        const auto copies = make_peer_copies(group, device);
        require(copies != nullptr, "expected copies");
        if (!group.is_first()) std::this_thread::sleep_for(std::chrono::seconds(300));
        copies->stream_barrier();
        copies->stream_barrier();
        const Tensor one = at::ones({}, at::TensorOptions(device));
        group.guarded("training", [&] { return one.item<float>(); });
        group.check();
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(60)) << ranks.all_output();
        for (const int rank : {0, 1}) {
          EXPECT_EQ(ranks.exit_code(rank), 1) << ranks.all_output();
          // Rank 0 is released; nothing wakes the other one, which on_stuck ends.
          EXPECT_TRUE(std::regex_search(
              ranks.output(rank),
              std::regex(std::string(rank == 0 ? "\\[training\\] " : "") +
                         "rank 1 \\(.*\\) has launched [0-9]+ collectives, when others launched")))
              << ranks.all_output();
        }
      });
}

}  // namespace
}  // namespace flashstep
