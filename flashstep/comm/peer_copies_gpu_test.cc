// Copies from GPU to GPU: what arrives, and that nobody reads or writes too early.
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "flashstep/comm/peer_copies.h"
#include "flashstep/comm/test_gpu_copies.h"
#include "flashstep/error.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpu_ranks.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::run_on_gpus;
using testing::same_bits;

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
    copies->stream_barrier();
    for (size_t i = 0; i < flats.size(); ++i) {
      const int64_t length = flats[i].numel() / ranks;
      Tensor own = flats[i].slice(0, group.rank() * length, (group.rank() + 1) * length);
      own.fill_(value(round, group.rank(), i));
      push_everywhere(*copies, i, own, group.rank() * length);
    }
    copies->stream_barrier();
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
  FLASHSTEP_NEED_GPUS(2);
  testing::run_by_copies(4, expect_all_arrive);
}

// One rank is late, in turn: before the barrier, when it still reads what others are about to
// write; and between the barrier and its push, while others wait for what it has to say.
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
      copies->stream_barrier();
      part(group.rank()).fill_(round).mul_(late ? late_one(device) : at::ones({}, flat.options()));
      push_everywhere(*copies, 0, part(group.rank()), group.rank() * kLength);
      copies->stream_barrier();
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
    copies->stream_barrier();
    if (group.is_first()) {
      push_everywhere(*copies, 0, at::full({21}, 2, options), 0);
      push_everywhere(*copies, 1, at::full({4}, 3, options), 6);
    }
    copies->stream_barrier();
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
    EXPECT_THROW(push_everywhere(*copies, 0, at::zeros({2}, options), 2), UserError)
        << "beyond the end";
    copies->stream_barrier();
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
      copies->stream_barrier();
      push_everywhere(*copies, 0, flat[group.rank()].fill_(1 + group.rank()),
                      group.rank() * flat.size(1));
      copies->stream_barrier();
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

}  // namespace
}  // namespace flashstep
