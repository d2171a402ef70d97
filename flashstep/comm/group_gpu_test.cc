// A Group over NCCL on two GPUs: what it computes, and what becomes of it when a rank is lost.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <regex>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpu_ranks.h"

namespace flashstep {
namespace {

using at::Tensor;
using std::chrono::milliseconds;
using testing::over_nccl;
using testing::Ranks;
using testing::same_bits;

// --- what it computes ------------------------------------------------------------------------

// Every rank holds (r + 1) x, of whole numbers that are exact in every dtype here.
void expect_reductions(const Group& group, at::Device device, at::ScalarType dtype, int64_t size) {
  const auto whole = at::arange(size, at::TensorOptions(device).dtype(at::kLong)).remainder(13);
  const Tensor own = (whole * (group.rank() + 1)).to(dtype);
  const auto expect = [&](Reduce reduce, double factor) {
    Tensor tensor = own.clone();
    all_reduce(group, tensor, reduce);
    EXPECT_TRUE(same_bits(tensor, (whole.to(at::kDouble) * factor).to(dtype)))
        << dtype << " of " << size << ", reduction " << static_cast<int>(reduce);
  };
  const int n = group.world_size();
  expect(Reduce::kSum, n * (n + 1) / 2);
  expect(Reduce::kMin, 1);
  expect(Reduce::kMax, n);
  if (!at::isFloatingType(dtype)) return;
  expect(Reduce::kMean, (n + 1) / 2.0);
  for (const Reduce reduce : {Reduce::kMin, Reduce::kMax}) {
    Tensor tensor = at::ones_like(own);
    if (group.rank() + 1 == n) tensor[-1] = NAN;  // of the last rank alone
    all_reduce(group, tensor, reduce);
    EXPECT_TRUE(tensor[-1].isnan().item<bool>()) << dtype << " of " << size;
    EXPECT_EQ(tensor.isnan().sum().item<int64_t>(), 1);
  }
}

TEST(GpuGroup, ReducesTensors) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_ranks(2, [](const Environment& environment) {
    const at::Device device = testing::take_gpu(environment);
    const Group group(environment, over_nccl());
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong}) {
      for (const int64_t size : {1, 2, 3, 1023, 1024, 1025, 100'003}) {
        expect_reductions(group, device, dtype, size);
      }
    }
    // And beside: small values on the CPU, through Gloo.
    EXPECT_EQ(group.all_reduce(group.rank() + 1, Reduce::kSum), 3);
    EXPECT_EQ(group.all_reduce(0.5 * group.rank(), Reduce::kMean), 0.25);
    EXPECT_EQ(group.broadcast(std::string(group.is_first() ? "first" : "")), "first");
    EXPECT_EQ(group.all_gather(std::string(group.rank() + 1, 'x')),
              (std::vector<std::string>{"x", "xx"}));
    group.barrier();
  });
}

TEST(GpuGroup, BroadcastsGathersAndScatters) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_ranks(2, [](const Environment& environment) {
    const at::Device device = testing::take_gpu(environment);
    const Group group(environment, over_nccl());
    const auto options = at::TensorOptions(device).dtype(at::kFloat);
    for (const int from : {0, 1}) {
      Tensor tensor = at::full({1001}, 10.0 + group.rank(), options);
      group.broadcast(tensor, from);
      EXPECT_TRUE(same_bits(tensor, at::full_like(tensor, 10.0 + from)));
    }
    Tensor own = at::arange(7, options) + 100 * group.rank(), all = at::full({14}, NAN, options);
    group.wait(group.process_group()._allgather_base(all, own), "all-gather");
    EXPECT_TRUE(same_bits(all, at::cat({at::arange(7, options), at::arange(7, options) + 100})));

    Tensor input = at::arange(10, options) * (group.rank() + 1),
           shard = at::full({5}, NAN, options);
    group.wait(group.process_group()._reduce_scatter_base(shard, input), "reduce-scatter");
    EXPECT_TRUE(same_bits(shard, (at::arange(5, options) + 5 * group.rank()) * 3));
  });
}

// Broadcasts of many tensors by both owners in one launch, as ShardedOptimizer sends parameters.
TEST(GpuGroup, SendsOfAllOwnersAtOnce) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_ranks(2, [](const Environment& environment) {
    const at::Device device = testing::take_gpu(environment);
    const Group group(environment, over_nccl());
    const auto options = at::TensorOptions(device).dtype(at::kFloat);
    for (int round = 0; round < 3; ++round) {
      std::vector<Tensor> tensors;
      for (int64_t i = 0; i < 9; ++i) {
        tensors.push_back(at::full({1 + 1000 * i}, group.rank() == i % 2 ? 1.0 * i : NAN, options));
      }
      group.process_group().startCoalescing(at::kCUDA);
      for (size_t i = 0; i < tensors.size(); ++i) {
        std::vector<Tensor> message = {tensors[i]};
        c10d::BroadcastOptions to_all;
        to_all.rootRank = static_cast<int64_t>(i % 2);
        group.process_group().broadcast(message, to_all);
      }
      const auto work = group.process_group().endCoalescing(at::kCUDA);
      if (work) group.wait(work, "sends");
      for (size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(same_bits(tensors[i], at::full_like(tensors[i], static_cast<double>(i)))) << i;
      }
    }
  });
}

// CUDA tensors without NCCL travel through the host.
TEST(GpuGroup, GlooTakesCudaTensors) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_ranks(2, [](const Environment& environment) {
    const at::Device device = testing::take_gpu(environment);
    const Group group(environment);
    for (const auto dtype : {at::kFloat, at::kHalf}) expect_reductions(group, device, dtype, 1025);
  });
}

void expect_refused(Ranks& ranks, const std::string& pattern) {
  EXPECT_TRUE(ranks.wait_for_all(60)) << ranks.all_output();
  for (int rank = 0; rank < ranks.world_size(); ++rank) {
    EXPECT_EQ(ranks.exit_code(rank), 2) << ranks.all_output();
    EXPECT_TRUE(std::regex_search(ranks.output(rank), std::regex(pattern))) << ranks.output(rank);
  }
}

TEST(GpuGroup, MoreRanksThanGpusAreRefused) {
  FLASHSTEP_NEED_GPUS(1);
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        testing::take_gpu(environment);
        const Group group(environment, over_nccl());
      },
      [](Ranks& ranks) { expect_refused(ranks, "got GPU-.* for both rank 0 .* and rank 1 "); },
      {{"CUDA_VISIBLE_DEVICES", "0"}});
}

TEST(GpuGroup, RanksWithAndWithoutAGpuAreRefused) {
  FLASHSTEP_NEED_GPUS(1);
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        const Group group(environment, environment.rank == 1 ? GroupOptions() : over_nccl());
      },
      [](Ranks& ranks) { expect_refused(ranks, "got GPU-.* on rank 0 .* and none on rank 1 "); });
}

// --- when a rank is lost ---------------------------------------------------------------------

constexpr milliseconds kSilence(3000);
// From the fault to the end of the other rank: the silence, the time of grace, and some.
constexpr double kPatienceSeconds = 20;

GroupOptions impatient() {
  GroupOptions options = over_nccl();
  options.timeouts.start = std::chrono::seconds(60);
  options.timeouts.silence = kSilence;
  options.timeouts.grace = milliseconds(4000);
  options.on_stuck = end_process;
  return options;
}

void say(const char* line) {
  std::printf("%s\n", line);
  std::fflush(stdout);
}

// As a training loop has them: products, an all-reduce, and a look at the result.
void step_forever(const Group& group, at::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const Tensor a = at::ones({512, 512}, options);
  for (int step = 0;; ++step) {
    Tensor gradients = at::matmul(a, a).flatten();
    all_reduce(group, gradients, Reduce::kMean, "all-reduce of gradients");
    group.guarded("training", [&] { return gradients[0].item<float>(); });
    group.check();
    if (step == 20) say("stepping");
  }
}

int sentences(const std::string& output) {
  const std::regex ours("flashstep: ");
  return static_cast<int>(
      std::distance(std::sregex_iterator(output.begin(), output.end(), ours), {}));
}

void expect_ended_naming(const Ranks& ranks, int rank, const std::string& pattern) {
  EXPECT_TRUE(ranks.has_ended(rank) && !ranks.was_killed(rank)) << ranks.all_output();
  EXPECT_EQ(ranks.exit_code(rank), 1) << ranks.all_output();
  EXPECT_TRUE(std::regex_search(ranks.output(rank), std::regex(pattern)))
      << "rank " << rank << " should say " << pattern << "\n"
      << ranks.all_output();
  EXPECT_EQ(sentences(ranks.output(rank)), 1) << ranks.output(rank);
  std::printf("rank %d ended with: %s\n", rank, ranks.output(rank).c_str());
}

void strike(int victim, int signal, const std::string& pattern) {
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        const at::Device device = testing::take_gpu(environment);
        step_forever(Group(environment, impatient()), device);
      },
      [&](Ranks& ranks) {
        for (const int rank : {0, 1}) {
          ASSERT_TRUE(ranks.wait_for_output(rank, "stepping")) << ranks.all_output();
        }
        const auto start = std::chrono::steady_clock::now();
        ranks.signal(victim, signal);
        EXPECT_TRUE(ranks.wait_for_all(kPatienceSeconds, signal == SIGSTOP ? victim : -1))
            << ranks.all_output();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        std::printf("the other rank ended %.1f s after signal %d\n", took.count(), signal);
        expect_ended_naming(ranks, 1 - victim, pattern);
      });
}

TEST(GpuGroupFaults, AKilledRankIsNamed) {
  FLASHSTEP_NEED_GPUS(2);
  strike(1, SIGKILL, "rank 1 \\(process [0-9]+ on .*\\) has not been heard for [0-9.]+ s");
}

TEST(GpuGroupFaults, AStoppedRankIsNamed) {
  FLASHSTEP_NEED_GPUS(2);
  strike(1, SIGSTOP, "rank 1 \\(process [0-9]+ on .*\\) has not been heard for 3\\.[0-9] s");
}

TEST(GpuGroupFaults, TheStoresHolderKilled) {
  FLASHSTEP_NEED_GPUS(2);
  strike(0, SIGKILL, "rank 0 \\(process .*\\), which holds the store, is gone");
}

TEST(GpuGroupFaults, TheStoresHolderStopped) {
  FLASHSTEP_NEED_GPUS(2);
  strike(0, SIGSTOP, "rank 0 \\(process .*\\), which holds the store, has not answered for 3\\.");
}

// Stopped while communicators are being made: a system call deep in NCCL is waited for.
TEST(GpuGroupFaults, StoppedWhileConnecting) {
  FLASHSTEP_NEED_GPUS(2);
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        const at::Device device = testing::take_gpu(environment);
        const Group group(environment, impatient());
        group.barrier();
        if (!group.is_first()) raise(SIGSTOP);
        step_forever(group, device);
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(kPatienceSeconds, /*excepted=*/1)) << ranks.all_output();
        expect_ended_naming(ranks, 0, "rank 1 \\(.*\\) has not been heard for 3\\.[0-9] s");
      });
}

TEST(GpuGroupFaults, AnExceptionIsToldToTheOthers) {
  FLASHSTEP_NEED_GPUS(2);
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        const at::Device device = testing::take_gpu(environment);
        Group group(environment, impatient());
        if (!group.is_first()) {
          Tensor own = at::ones({10}, at::TensorOptions(device));
          all_reduce(group, own, Reduce::kSum);
          group.fail("no space left on device");
          throw MachineError("no space left on device");
        }
        step_forever(group, device);
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(kPatienceSeconds)) << ranks.all_output();
        expect_ended_naming(ranks, 0, "rank 1 failed: no space left on device");
        expect_ended_naming(ranks, 1, "flashstep: no space left on device");
      });
}

TEST(GpuGroupFaults, WhoLeavesEarlyIsNamed) {
  FLASHSTEP_NEED_GPUS(2);
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        const at::Device device = testing::take_gpu(environment);
        const Group group(environment, impatient());
        Tensor own = at::ones({10}, at::TensorOptions(device));
        all_reduce(group, own, Reduce::kSum);
        if (group.is_first()) step_forever(group, device);
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(kPatienceSeconds)) << ranks.all_output();
        EXPECT_EQ(ranks.exit_code(1), 0) << ranks.output(1);
        expect_ended_naming(ranks, 0, "rank 1 \\(.*\\) has left while others still communicate");
      });
}

// Heard, but caught elsewhere: it never launches the collective in which the other waits.
TEST(GpuGroupFaults, WhoIsCaughtElsewhereIsNamed) {
  FLASHSTEP_NEED_GPUS(2);
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        const at::Device device = testing::take_gpu(environment);
        GroupOptions options = impatient();
        options.timeouts.collective = milliseconds(4000);
        const Group group(environment, options);
        Tensor own = at::ones({10}, at::TensorOptions(device));
        all_reduce(group, own, Reduce::kSum);
        if (!group.is_first()) std::this_thread::sleep_for(std::chrono::seconds(300));
        step_forever(group, device);
      },
      [](Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(40)) << ranks.all_output();
        for (const int rank : {0, 1}) {
          expect_ended_naming(ranks, rank,
                              "rank 1 \\(.*\\) has launched [0-9]+ collectives, when others "
                              "launched [0-9]+ and wait");
        }
      });
}

// A whole job that is suspended and resumed goes on.
TEST(GpuGroupFaults, ASuspendedJobGoesOn) {
  FLASHSTEP_NEED_GPUS(2);
  testing::start_ranks(
      2,
      [](const Environment& environment) {
        const at::Device device = testing::take_gpu(environment);
        GroupOptions options = impatient();
        options.timeouts.silence = milliseconds(2000);
        const Group group(environment, options);
        say("ready");
        for (int i = 0; i < 30; ++i) {
          Tensor one = at::ones({1000}, at::TensorOptions(device));
          all_reduce(group, one, Reduce::kSum);
          EXPECT_EQ(one[7].item<float>(), 2);
          std::this_thread::sleep_for(milliseconds(100));
        }
      },
      [](Ranks& ranks) {
        for (const int rank : {0, 1}) ASSERT_TRUE(ranks.wait_for_output(rank, "ready"));
        for (const int rank : {0, 1}) ranks.signal(rank, SIGSTOP);
        std::this_thread::sleep_for(milliseconds(3000));
        for (const int rank : {0, 1}) ranks.signal(rank, SIGCONT);
        EXPECT_TRUE(ranks.wait_for_all(60)) << ranks.all_output();
        for (const int rank : {0, 1}) EXPECT_EQ(ranks.exit_code(rank), 0) << ranks.all_output();
      });
}

}  // namespace
}  // namespace flashstep
