// The all-reduce by copies, on two and on four GPUs, beside NCCL's and beside exact numbers.
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include "flashstep/comm/peer_mean.h"
#include "flashstep/comm/test_gpu_copies.h"
#include "flashstep/group.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpu_ranks.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::run_on_gpus;
using testing::same_bits;

// Whole numbers that every dtype holds, also their sums; `which` tells lists apart.
Tensor exact(const Tensor& like, int rank, int which) {
  const Tensor index = at::arange(like.numel(), at::TensorOptions(like.device()).dtype(at::kLong));
  return ((index + which).remainder(13) * (rank + 1) * 4).to(like.scalar_type()).view_as(like);
}

// Tensors of all sizes, some at odd places of a larger one, some with their axes in another order.
std::vector<Tensor> make_tensors(at::Device device, at::ScalarType dtype, int64_t largest) {
  const auto options = at::TensorOptions(device).dtype(dtype);
  std::vector<Tensor> tensors;
  for (const int64_t size : {int64_t{1}, int64_t{2}, int64_t{31}, int64_t{32}, int64_t{33},
                             int64_t{0}, int64_t{8191}, int64_t{8193}, int64_t{100'003}, largest}) {
    tensors.push_back(at::zeros({size}, options));
    tensors.push_back(at::zeros({size + 5}, options).slice(0, 1, 1 + size));
  }
  tensors.push_back(at::zeros({300, 7}, options).t());
  return tensors;
}

void expect_exact_means(const Group& group, at::Device device) {
  const int n = group.world_size();
  const double sum_of_factors = n * (n + 1) / 2.0;
  for (const size_t bytes : {size_t{1}, size_t{100'000}, n * kMostPeerMeanShare}) {
    const auto peers = make_peer_mean(group, device, bytes);
    ASSERT_NE(peers, nullptr);
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      // In many rounds, and in one or three.
      std::vector<Tensor> tensors = make_tensors(device, dtype, bytes == 1 ? 1000 : 20'000'000);
      ASSERT_TRUE(peers->takes(tensors));
      for (int step = 0; step < 3; ++step) {
        for (Tensor& tensor : tensors) tensor.copy_(exact(tensor, group.rank(), step));
        peers->mean(tensors);
        for (size_t i = 0; i < tensors.size(); ++i) {
          const Tensor factor = exact(tensors[i], 0, step).to(at::kDouble);
          EXPECT_TRUE(same_bits(tensors[i].contiguous(),
                                (factor * sum_of_factors / n).to(dtype).contiguous()))
              << dtype << ", tensor " << i << ", step " << step << ", room for " << bytes;
        }
      }
    }
  }
}

// Lists one behind the other in the memory of means that stay; each step takes the means of what
// lies there since the last.
void expect_kept_means(const Group& group, at::Device device) {
  const int n = group.world_size();
  const auto peers = make_peer_mean(group, device, 1'000'000);
  ASSERT_NE(peers, nullptr);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<std::vector<Tensor>> lists = {make_tensors(device, dtype, 3'000'000),
                                              make_tensors(device, dtype, 1000)};
    const auto bytes_of = [&](const std::vector<Tensor>& tensors) {
      std::vector<size_t> bytes;
      for (const Tensor& tensor : tensors) bytes.push_back(tensor.nbytes());
      return peers->kept_bytes(bytes);
    };
    const size_t first = bytes_of(lists[0]), second = bytes_of(lists[1]);
    if (dtype == at::kFloat) {
      ASSERT_TRUE(peers->keep(first + second));
    }
    for (int step = 0; step < 4; ++step) {
      for (size_t list = 0; list < 2; ++list) {
        const std::vector<Tensor> before = lists[list];
        for (size_t i = 0; i < before.size(); ++i)
          before[i].copy_(exact(before[i], group.rank(), step + static_cast<int>(list)));
        lists[list] = peers->mean(before, list == 0 ? 0 : first);
        int64_t moved = 0;
        for (size_t i = 0; i < before.size(); ++i) {
          const Tensor& mean = lists[list][i];
          moved += mean.data_ptr() != before[i].data_ptr();
          EXPECT_EQ(mean.strides(), before[i].strides());
          const Tensor factor = exact(mean, 0, step + static_cast<int>(list)).to(at::kDouble);
          EXPECT_TRUE(
              same_bits(mean.contiguous(), (factor * ((n + 1) / 2.0)).to(dtype).contiguous()))
              << dtype << ", list " << list << ", tensor " << i << ", step " << step;
        }
        // In the first step some come from others whole; from then on all stay.
        moved = group.all_reduce(moved, Reduce::kSum);
        EXPECT_TRUE(step == 0 ? moved > 0 : moved == 0) << moved << " in step " << step;
      }
    }
  }
  EXPECT_FALSE(peers->keep(size_t{1} << 50)) << "no GPU has so much";
}

TEST(GpuPeerMean, MeansStayWhereTheyArrive) {
  FLASHSTEP_NEED_GPUS(2);
  run_on_gpus(2, expect_kept_means);
}

TEST(GpuPeerMean, MeansOfFourRanksStayWhereTheyArrive) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_by_copies(4, expect_kept_means);
}

TEST(GpuPeerMean, MeansAreExact) {
  FLASHSTEP_NEED_GPUS(2);
  run_on_gpus(2, expect_exact_means);
}

TEST(GpuPeerMean, MeansOfFourRanksAreExact) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_by_copies(4, expect_exact_means);
}

// Of all lists since begin_norm(), in launches and replays, in one round and in many.
void expect_norms(const Group& group, at::Device device) {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  const auto n = static_cast<size_t>(group.world_size());
  for (const size_t bytes : {size_t{100'000}, n * kMostPeerMeanShare}) {
    const auto peers = make_peer_mean(group, device, bytes);
    ASSERT_NE(peers, nullptr);
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      at::manual_seed(3 + group.rank());
      std::vector<std::vector<Tensor>> lists;
      for (const int64_t largest : {3'000'000, 1000})
        lists.push_back(make_tensors(device, dtype, largest));
      // Sums of one round by several launches.
      for (int i = 0; i < 60; ++i) {
        for (const auto other : {at::kFloat, at::kHalf})
          lists[1].push_back(at::zeros({100 + i}, at::TensorOptions(device).dtype(other)));
      }
      int64_t numel = 0;
      for (const std::vector<Tensor>& list : lists) {
        for (const Tensor& tensor : list) numel += tensor.numel();
      }
      const auto step = [&] {
        peers->begin_norm();
        for (const std::vector<Tensor>& list : lists) peers->mean(list);
        return peers->norm(numel);
      };
      const auto fill = [&] {
        for (const std::vector<Tensor>& list : lists) {
          for (const Tensor& tensor : list) tensor.normal_();
        }
      };
      const auto expect_norm = [&](const Tensor& norm) {
        Tensor squares = at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
        for (const std::vector<Tensor>& list : lists) {
          for (const Tensor& tensor : list) squares += tensor.to(at::kDouble).square().sum();
        }
        ASSERT_TRUE(norm.defined());
        EXPECT_EQ(norm.scalar_type(), at::kFloat);
        const double expected = squares.sqrt().item<double>();
        EXPECT_NEAR(norm.item<double>(), expected, 1e-6 * expected) << dtype << ", " << bytes;
        const int64_t bits = norm.view(at::kInt).item<int>();
        EXPECT_EQ(group.all_reduce(bits, Reduce::kMax), bits) << "the same on all ranks";
      };
      for (int i = 0; i < 2; ++i) {
        fill();
        expect_norm(step());
      }
      EXPECT_FALSE(peers->norm(numel - 1).defined()) << "of other tensors";
      at::cuda::CUDAGraph graph;
      graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
      const Tensor norm = step();
      graph.capture_end();
      for (int i = 0; i < 3; ++i) {
        fill();
        graph.replay();
        expect_norm(norm);
      }
      fill();
      lists[0][2][1] = group.rank() == 0 ? std::numeric_limits<double>::quiet_NaN() : 0.0;
      EXPECT_TRUE(std::isnan(step().item<double>())) << "of any rank";
      group.barrier();
    }
  }
}

TEST(GpuPeerMean, NormsOfTooManyRoundsAreUndefined) {
  FLASHSTEP_NEED_GPUS(2);
  run_on_gpus(2, [](const Group& group, at::Device device) {
    const auto peers = make_peer_mean(group, device, 1);
    ASSERT_NE(peers, nullptr);
    const Tensor large = at::ones({100'000}, at::TensorOptions(device).dtype(at::kFloat));
    for (const int64_t size : {1000, 100'000, 1000}) {
      const Tensor tensor = large.slice(0, 0, size);
      peers->begin_norm();
      peers->mean({tensor});
      EXPECT_EQ(peers->norm(size).defined(), size == 1000);
      EXPECT_TRUE(tensor.eq(1).all().item<bool>());
    }
  });
}

TEST(GpuPeerMean, NormsComeAlong) {
  FLASHSTEP_NEED_GPUS(2);
  run_on_gpus(2, expect_norms);
}

TEST(GpuPeerMean, NormsOfFourRanksComeAlong) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_by_copies(4, expect_norms);
}

// Whatever a list begins with: sums are in the order of ranks, rounded once.
void expect_same_bits_everywhere(const Group& group, at::Device device) {
  const auto peers = make_peer_mean(group, device, 1'000'000);
  ASSERT_NE(peers, nullptr);
  at::manual_seed(11 + group.rank());
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const Tensor own = at::randn({100'003}, at::TensorOptions(device).dtype(dtype));
    Tensor sum = at::zeros_like(own, at::TensorOptions().dtype(at::kFloat));
    for (int rank = 0; rank < group.world_size(); ++rank) {
      const Tensor theirs = own.clone();
      group.broadcast(theirs, rank);
      sum += theirs.to(at::kFloat);
    }
    const Tensor expected = (sum * static_cast<float>(1.0F / group.world_size())).to(dtype);
    for (const int64_t before : {0, 1, 77'777}) {
      std::vector<Tensor> tensors = {at::ones({before}, own.options()), own.clone()};
      peers->mean(tensors);
      EXPECT_TRUE(same_bits(tensors[1], expected)) << dtype << " after " << before;
    }
    if (group.world_size() > 2) continue;
    Tensor by_nccl = own.clone();
    all_reduce(group, by_nccl, Reduce::kMean);
    EXPECT_TRUE(same_bits(by_nccl, expected)) << "a sum of two has one order";
  }
}

TEST(GpuPeerMean, BitsDoNotDependOnThePlace) {
  FLASHSTEP_NEED_GPUS(2);
  run_on_gpus(2, expect_same_bits_everywhere);
}

TEST(GpuPeerMean, BitsOfFourRanksDoNotDependOnThePlace) {
  FLASHSTEP_NEED_GPUS(4);
  run_on_gpus(4, expect_same_bits_everywhere);
}

// Means of what is made just before, again and again, while one rank is late.
TEST(GpuPeerMean, WaitsForWhatItTakes) {
  FLASHSTEP_NEED_GPUS(2);
  run_on_gpus(2, [](const Group& group, at::Device device) {
    const auto options = at::TensorOptions(device).dtype(at::kFloat);
    const auto peers = make_peer_mean(group, device, 4'000'000);
    ASSERT_NE(peers, nullptr);
    constexpr int64_t kSide = 2048;  // a power of two: every product is 1 exactly
    const Tensor factor = at::full({kSide, kSide}, 1.0 / kSide, options);
    Tensor wrong = at::zeros({}, options.dtype(at::kLong));
    Tensor gradient = at::ones({kSide, kSide}, options);
    for (int step = 0; step < 50; ++step) {
      gradient = at::ones({kSide, kSide}, options);
      for (int i = 0; i < (step % 2 == group.rank() ? 8 : 1); ++i)
        gradient = gradient.matmul(factor);
      gradient.mul_(group.rank() + 2.0 * step);
      peers->mean({gradient});
      wrong += (gradient != 0.5 + 2.0 * step).sum();
    }
    EXPECT_EQ(wrong.item<int64_t>(), 0);
  });
}

// Every replay takes the means of what the tensors hold by then; means outside come between.
void expect_replays_to_take_means(const Group& group, at::Device device) {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const int n = group.world_size();
  const auto peers = make_peer_mean(group, device, 1'000'000);
  ASSERT_NE(peers, nullptr);
  const Tensor large = at::zeros({1'000'003}, options), small = at::zeros({33}, options);
  const auto expect_means = [&](double step) {
    const double mean = step + (n - 1) / 2.0;
    EXPECT_TRUE(same_bits(large, at::full_like(large, mean))) << step;
    EXPECT_TRUE(same_bits(small, at::full_like(small, 2 * mean))) << step;
  };
  const auto fill = [&](double step) {
    large.fill_(group.rank() + step);
    small.fill_(2 * (group.rank() + step));
  };
  at::cuda::CUDAGraph none, first, second;
  const auto capture = [&](at::cuda::CUDAGraph& graph, int times) {
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    const bool takes = peers->takes({large, small});
    for (int i = 0; takes && i < times; ++i) peers->mean({large, small});
    graph.capture_end();
    return takes;
  };
  EXPECT_FALSE(capture(none, 1)) << "the first mean is no graph's";
  fill(0);
  peers->mean({large, small});
  expect_means(0);
  ASSERT_TRUE(capture(first, 1));
  ASSERT_TRUE(capture(second, 3));
  expect_means(0);
  for (int step = 1; step < 30; ++step) {
    fill(step);
    if (step % 2 == group.rank() % 2) late_one(device);
    if (step % 5 == 4) {
      peers->mean({large, small});
    } else {
      (step % 3 == 0 ? first : second).replay();
    }
    expect_means(step);
  }
  // One after the other, no host between them: from mean to mean every rank adds its own number.
  at::cuda::CUDAGraph third;
  third.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  for (int i = 0; i < 3; ++i) {
    peers->mean({large});
    large.add_(group.rank());
  }
  third.capture_end();
  large.fill_(group.rank());
  constexpr int kReplays = 200;
  for (int i = 0; i < kReplays; ++i) {
    if (i % 50 == group.rank()) late_one(device);
    third.replay();
  }
  EXPECT_TRUE(same_bits(large, at::full_like(large, group.rank() + 3 * kReplays * (n - 1) / 2.0)));
  group.barrier();
}

TEST(GpuPeerMean, ReplaysTakeMeans) {
  FLASHSTEP_NEED_GPUS(2);
  run_on_gpus(2, expect_replays_to_take_means);
}

TEST(GpuPeerMean, ReplaysTakeMeansOfFourRanks) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_by_copies(4, expect_replays_to_take_means);
}

TEST(GpuPeerMean, LeavesOthersToNccl) {
  FLASHSTEP_NEED_GPUS(2);
  run_on_gpus(2, [](const Group& group, at::Device device) {
    const auto peers = make_peer_mean(group, device, 1000);
    ASSERT_NE(peers, nullptr);
    const auto options = at::TensorOptions(device);
    EXPECT_TRUE(peers->takes({at::ones({3}, options.dtype(at::kFloat))}));
    EXPECT_FALSE(peers->takes({at::ones({3}, options.dtype(at::kLong))}));
    EXPECT_FALSE(peers->takes({at::ones({3}, at::kFloat)}));
    EXPECT_FALSE(peers->takes({at::ones({3, 4}, options.dtype(at::kFloat)).slice(1, 0, 2)}));
  });
}

}  // namespace
}  // namespace flashstep
