// Copies from GPU to GPU: what arrives, that nobody reads or writes too early, and what becomes of
// those that wait for a lost rank.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "flashstep/base/error.h"
#include "flashstep/comm/peer_copies.h"
#include "flashstep/comm/peer_mean.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpu_ranks.h"

namespace flashstep::comm {
namespace {

using at::Tensor;
using testing::over_nccl;
using testing::Ranks;
using testing::run_on_gpus;
using testing::same_bits;

void push_to_all(PeerCopies& copies, const Group& group, size_t number, const Tensor& from,
                 int64_t begin) {
  for (int to = 0; to < group.world_size(); ++to) {
    if (to != group.rank()) copies.push(to, number, from, begin);
  }
}

// Of all sizes and dtypes, several in one allocation of the caching allocator, with values that
// tell rank, tensor and round.
void expect_all_arrive(const Group& group, at::Device device) {
  const auto copies = make_peer_copies(group, device);
  ASSERT_NE(copies, nullptr);
  const int ranks = group.world_size();
  std::vector<Tensor> flats;
  for (const int64_t length : {1, 2, 3, 127, 128, 129, 100'003, 3'000'001}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kByte}) {
      flats.push_back(at::zeros({length * ranks}, at::TensorOptions(device).dtype(dtype)));
    }
  }
  ASSERT_TRUE(copies->share(flats));
  const auto value = [](int round, int rank, size_t i) {
    return static_cast<double>((round * 7 + rank * 3 + static_cast<int>(i)) % 100);
  };
  for (int round = 0; round < 5; ++round) {
    copies->meet();
    for (size_t i = 0; i < flats.size(); ++i) {
      const int64_t length = flats[i].numel() / ranks;
      Tensor own = flats[i].slice(0, group.rank() * length, (group.rank() + 1) * length);
      own.fill_(value(round, group.rank(), i));
      push_to_all(*copies, group, i, own, group.rank() * length);
    }
    copies->meet();
    for (size_t i = 0; i < flats.size(); ++i) {
      const std::vector<Tensor> parts = flats[i].chunk(ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_TRUE(same_bits(parts[rank], at::full_like(parts[rank], value(round, rank, i))))
            << "round " << round << ", tensor " << i << ", from rank " << rank;
      }
    }
  }
}

TEST(GpuPeerCopies, AllOfItArrives) {
  FLASHSTEP_NEED_GPUS(2);
  run_on_gpus(2, expect_all_arrive);
}

TEST(GpuPeerCopies, FourRanks) {
  FLASHSTEP_NEED_GPUS(4);
  run_on_gpus(4, expect_all_arrive);
}

// Milliseconds of work on the current stream; returns 1.
Tensor late_one(at::Device device) {
  constexpr int64_t kSide = 4096;  // a power of two: every product is 1 exactly
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const Tensor factor = at::full({kSide, kSide}, 1.0 / kSide, options);
  Tensor one = at::ones({kSide, kSide}, options);
  for (int i = 0; i < 20; ++i) one = one.matmul(factor);
  return one[0][0];
}

// One rank is late, in turn: before they meet, when it still reads what others are about to write;
// and between the meeting and its push, while others wait for what it has to say.
TEST(GpuPeerCopies, NobodyReadsOrWritesTooEarly) {
  FLASHSTEP_NEED_GPUS(2);
  run_on_gpus(2, [](const Group& group, at::Device device) {
    const auto copies = make_peer_copies(group, device);
    ASSERT_NE(copies, nullptr);
    constexpr int64_t kLength = 5'000'000;
    const Tensor flat = at::zeros({2 * kLength}, at::TensorOptions(device).dtype(at::kFloat));
    ASSERT_TRUE(copies->share({flat}));
    const auto part = [&](int rank) { return flat.slice(0, rank * kLength, (rank + 1) * kLength); };
    Tensor wrong = at::zeros({}, at::TensorOptions(device).dtype(at::kLong));
    for (int round = 1; round <= 8; ++round) {
      const bool late = group.rank() == round % 2;
      if (late) late_one(device);
      wrong += (part(1 - group.rank()) != round - 1).sum();  // the last look at the old values
      copies->meet();
      part(group.rank()).fill_(round).mul_(late ? late_one(device) : at::ones({}, flat.options()));
      push_to_all(*copies, group, 0, part(group.rank()), group.rank() * kLength);
      copies->meet();
      wrong += (flat != round).sum();
    }
    EXPECT_EQ(wrong.item<int64_t>(), 0);
  });
}

// Parameters are given other memory, and what is copied goes where it lay before; a later set of
// tensors is shared in addition.
TEST(GpuPeerCopies, WritesWhereATensorLayWhenItWasShared) {
  FLASHSTEP_NEED_GPUS(2);
  run_on_gpus(2, [](const Group& group, at::Device device) {
    const auto copies = make_peer_copies(group, device);
    ASSERT_NE(copies, nullptr);
    const auto options = at::TensorOptions(device).dtype(at::kFloat);
    Tensor moved = at::zeros({5 * 21}, options).slice(0, 21, 42).view({3, 7}).t();
    ASSERT_TRUE(copies->share({moved}));
    moved.set_data(at::full({7, 3}, 5, options));
    const Tensor later = at::zeros({11}, options);
    ASSERT_TRUE(copies->share({later}));
    copies->meet();
    if (group.is_first()) {
      push_to_all(*copies, group, 0, at::full({21}, 2, options), 0);
      push_to_all(*copies, group, 1, at::full({4}, 3, options), 6);
    }
    copies->meet();
    if (group.is_first()) return;
    EXPECT_TRUE(same_bits(moved, at::full({7, 3}, 5, options)));
    EXPECT_TRUE(same_bits(copies->shared(0), at::full({21}, 2, options)));
    EXPECT_TRUE(same_bits(later.slice(0, 6, 10), at::full({4}, 3, options)));
    EXPECT_EQ(later.sum().item<float>(), 12);
  });
}

TEST(GpuPeerCopies, MistakesAreRefused) {
  FLASHSTEP_NEED_GPUS(2);
  run_on_gpus(2, [](const Group& group, at::Device device) {
    const auto copies = make_peer_copies(group, device);
    ASSERT_NE(copies, nullptr);
    const auto options = at::TensorOptions(device).dtype(at::kFloat);
    EXPECT_FALSE(copies->share({at::zeros({3 + group.rank()}, options)})) << "unequal sizes";
    ASSERT_TRUE(copies->share({at::zeros({3}, options)}));
    EXPECT_THROW(push_to_all(*copies, group, 0, at::zeros({2}, options), 2), UserError)
        << "beyond the end";
    copies->meet();
    EXPECT_EQ(copies->shared(0).sum().item<float>(), 0);
  });
}

// Made and ended again and again: over memory of their own, over a part of memory that stays.
TEST(GpuPeerCopies, ComeAndGo) {
  FLASHSTEP_NEED_GPUS(2);
  run_on_gpus(2, [](const Group& group, at::Device device) {
    const auto options = at::TensorOptions(device).dtype(at::kFloat);
    const Tensor lasting = at::zeros({100'000'000}, options);
    for (int round = 0; round < 8; ++round) {
      const auto copies = make_peer_copies(group, device);
      ASSERT_NE(copies, nullptr);
      const int64_t size = 20'000'000 + round * 1'000'000;
      const Tensor flat = round < 5 ? at::zeros({2, size}, options)
                                    : lasting.slice(0, round, round + 2 * size).view({2, size});
      ASSERT_TRUE(copies->share({flat}));
      copies->meet();
      push_to_all(*copies, group, 0, flat[group.rank()].fill_(1 + group.rank()),
                  group.rank() * flat.size(1));
      copies->meet();
      EXPECT_TRUE(
          same_bits(flat[1 - group.rank()], at::full({flat.size(1)}, 2 - group.rank(), options)));
      if (round % 2 == 0) group.barrier();
      c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
    }
  });
}

TEST(GpuPeerCopies, NotWithoutNcclOrAlone) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_ranks(2, [](const Environment& environment) {
    const at::Device device = testing::take_gpu(environment);
    const Group group(environment);
    EXPECT_EQ(make_peer_copies(group, device), nullptr);
    EXPECT_EQ(make_peer_copies(group, at::kCPU), nullptr);
    const Group others(group.shared_process_group());
    EXPECT_EQ(make_peer_copies(others, device), nullptr);
  });
}

// --- when a rank is lost ---------------------------------------------------------------------

void strike(int signal, bool after_meeting) {
  testing::start_ranks(
      2,
      [&](const Environment& environment) {
        const at::Device device = testing::take_gpu(environment);
        GroupOptions options = over_nccl();
        options.timeouts.silence = std::chrono::seconds(3);
        options.timeouts.grace = std::chrono::seconds(20);  // on_stuck says no "[training]"
        options.on_stuck = end_process;
        const Group group(environment, options);
        const auto copies = make_peer_copies(group, device);
        const Tensor flat = at::zeros({2'000'000}, at::TensorOptions(device).dtype(at::kFloat));
        require(copies != nullptr && copies->share({flat}), "expected copies");
        for (int step = 0;; ++step) {
          const bool struck = step == 5 && !group.is_first();
          if (struck && !after_meeting) raise(signal);
          copies->meet();
          push_to_all(*copies, group, 0, flat.slice(0, 0, 1'000'000), 0);
          if (struck && after_meeting) {
            flat.sum().item<float>();  // the meeting is over by now
            raise(signal);
          }
          copies->meet();
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
  strike(SIGSTOP, /*after_meeting=*/false);
}

TEST(GpuPeerCopiesFaults, AKilledRankIsNamed) {
  FLASHSTEP_NEED_GPUS(2);
  strike(SIGKILL, /*after_meeting=*/false);
}

TEST(GpuPeerCopiesFaults, ARankThatIsStoppedInTheMiddleIsNamed) {
  FLASHSTEP_NEED_GPUS(2);
  strike(SIGSTOP, /*after_meeting=*/true);
}

// Survivors learn of the loss one after the other; who does not know yet still waits, and sees no
// number that is not the mean.
TEST(GpuPeerCopiesFaults, NobodyGoesOnBeforeItKnows) {
  FLASHSTEP_NEED_GPUS(3);
  testing::start_ranks(
      3,
      [](const Environment& environment) {
        const at::Device device = testing::take_gpu(environment);
        GroupOptions options = over_nccl();
        options.timeouts.silence = std::chrono::seconds(3);
        options.timeouts.grace = std::chrono::seconds(20);
        options.on_stuck = end_process;
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

// Its stream waits for a meeting that the others never launch, and nothing ends its process for it.
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
          copies->meet();
          if (!group.is_first()) {
            copies->meet();
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

// The stream of a rank that ends runs on, past meetings that the others have not come to, and tells
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
        for (int i = 0; i < 5; ++i) late_one(device);  // a quarter of a second
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
        copies->meet();
        copies->meet();
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
}  // namespace flashstep::comm
