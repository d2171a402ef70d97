// What a Group computes, over real processes.
#include "flashstep/group.h"

#include <chrono>
#include <cmath>
#include <csignal>
#include <memory>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/testing/ranks.h"

namespace flashstep {
namespace {

void values_agree(const Environment& environment) {
  const Group group(environment);
  const int rank = group.rank(), size = group.world_size();
  EXPECT_EQ(rank, environment.rank);
  EXPECT_EQ(size, environment.world_size);
  EXPECT_EQ(group.all_reduce(rank + 1, Reduce::kSum), size * (size + 1) / 2);
  EXPECT_EQ(group.all_reduce(int64_t{1} << (40 + rank), Reduce::kMax), int64_t{1} << (39 + size));
  EXPECT_EQ(group.all_reduce(0.5 * rank, Reduce::kMin), 0);
  EXPECT_EQ(group.all_reduce(0.5 * rank, Reduce::kMean), 0.25 * (size - 1));
  const std::vector<double> sums =
      group.all_reduce(std::vector<double>{1.0 * rank, 10, -1.0 * rank}, Reduce::kSum);
  EXPECT_EQ(sums,
            (std::vector<double>{size * (size - 1) / 2.0, 10.0 * size, size * (size - 1) / -2.0}));
  EXPECT_TRUE(group.all_reduce(std::vector<double>{}, Reduce::kSum).empty());
  for (const Reduce reduce : {Reduce::kMin, Reduce::kMax}) {
    EXPECT_TRUE(std::isnan(group.all_reduce(rank + 1 == size ? NAN : 1.0, reduce)));
    EXPECT_TRUE(std::isnan(group.all_reduce(rank == 0 ? NAN : 1.0, reduce)));
  }
  const std::vector<double> lone = group.all_gather(rank == 0 ? 1.0 : NAN);
  EXPECT_EQ(lone[0], 1);
  EXPECT_TRUE(size == 1 || std::isnan(lone[1]));

  const std::vector<std::string> texts = group.all_gather(std::string(rank * 3, 'a' + rank));
  ASSERT_EQ(static_cast<int>(texts.size()), size);
  for (int i = 0; i < size; ++i) EXPECT_EQ(texts[i], std::string(i * 3, 'a' + i));
  const std::string json = std::string("{\"steps\": [1, 2]}") + '\0' + "binary";
  EXPECT_EQ(group.broadcast(rank == 0 ? json : "ignored, and longer than what rank 0 sends"), json);
  EXPECT_EQ(group.broadcast(rank == size - 1 ? json : "", size - 1), json);
  EXPECT_EQ(group.broadcast(std::string()), "");
  group.barrier();
}

void collectives_add_up(const Environment& environment) {
  const Group group(environment);
  const double size = group.world_size();
  at::Tensor tensor = at::full({1001}, group.rank() + 1.0f);
  std::vector<at::Tensor> tensors = {tensor};
  group.wait(group.process_group().allreduce(tensors), "all-reduce");
  EXPECT_EQ(tensor.min().item<double>(), size * (size + 1) / 2);
  EXPECT_EQ(tensor.max().item<double>(), size * (size + 1) / 2);

  at::Tensor parameters = at::full({7}, static_cast<double>(group.rank()));
  group.broadcast(parameters, group.world_size() - 1);
  EXPECT_EQ(parameters.sum().item<double>(), 7 * (size - 1));

  at::Tensor input = at::arange(3 * group.world_size(), at::kFloat) + group.rank();
  at::Tensor shard = at::full({3}, NAN);
  group.wait(group.process_group()._reduce_scatter_base(shard, input), "reduce-scatter");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(shard[i].item<double>(), size * (3 * group.rank() + i) + size * (size - 1) / 2);
  }
}

// A process that was forked has the group, and none of the threads that serve it.
void fork_ends_without_it(const Environment& environment) {
  auto group = std::make_unique<Group>(environment);
  const pid_t child = ::fork();
  if (child == 0) {
    group.reset();
    ::_exit(0);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(child, &status, WNOHANG)) == 0 &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (ended == 0) ::kill(child, SIGKILL);
  EXPECT_EQ(ended, child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(group->all_reduce(1, Reduce::kSum), environment.world_size);
}

TEST(Group, AForkEndsWithoutIt) {
  testing::run_ranks(1, fork_ends_without_it);
  testing::run_ranks(2, fork_ends_without_it);
}

TEST(Group, OneRankNeedsNobody) {
  const Environment alone;
  values_agree(alone);
  collectives_add_up(alone);
}

TEST(Group, TwoRanks) {
  testing::run_ranks(2, [](const Environment& environment) {
    values_agree(environment);
    collectives_add_up(environment);  // the second group of the process
  });
}

TEST(Group, ThreeRanks) { testing::run_ranks(3, values_agree); }

TEST(Group, FourRanks) {
  testing::run_ranks(4, [](const Environment& environment) {
    const Group group(environment);
    EXPECT_EQ(group.all_reduce(1.0, Reduce::kSum), 4);
    // A sum whose bits depend on the order is the same everywhere.
    const double sum = group.all_reduce(0.1 * (1 << (9 * group.rank())), Reduce::kSum);
    for (const double other : group.all_gather(sum)) EXPECT_EQ(other, sum);
  });
}

TEST(Group, TensorsAreReducedInPlace) {
  for (const int world_size : {1, 3}) {
    testing::run_ranks(world_size, [](const Environment& environment) {
      const Group group(environment);
      const int rank = group.rank(), size = group.world_size();
      const auto reduced = [&](Reduce reduce, at::ScalarType dtype) {
        at::Tensor tensor = at::full({2, 3}, rank + 1, dtype);
        all_reduce(group, tensor, reduce);
        return tensor[1][2].item<double>();
      };
      EXPECT_EQ(reduced(Reduce::kSum, at::kLong), size * (size + 1) / 2);
      EXPECT_EQ(reduced(Reduce::kMean, at::kFloat), (size + 1) / 2.0);
      EXPECT_EQ(reduced(Reduce::kMin, at::kDouble), 1);
      EXPECT_EQ(reduced(Reduce::kMax, at::kFloat), size);
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
        for (const Reduce reduce : {Reduce::kMin, Reduce::kMax}) {
          at::Tensor tensor = at::ones({2}, dtype);
          if (rank + 1 == size) tensor[1] = NAN;  // of the last rank alone
          all_reduce(group, tensor, reduce);
          EXPECT_EQ(tensor[0].item<double>(), 1);
          EXPECT_TRUE(std::isnan(tensor[1].item<double>())) << dtype;
        }
      }
      const auto refused = [&](const at::Tensor& tensor, Reduce reduce) {
        EXPECT_THROW(all_reduce(group, tensor, reduce, "gradients"), UserError);
      };
      if (group.is_first()) {  // nothing is sent
        refused(at::ones({2, 3}).t(), Reduce::kSum);
        refused(at::ones({2}, at::kLong), Reduce::kMean);
        refused({}, Reduce::kSum);
      }
    });
  }
}

TEST(Group, OthersErrorsPassThrough) {
  const Group group{Environment()};
  EXPECT_THROW(group.guarded("x", [] { throw UserError("mine"); }), UserError);
  EXPECT_THROW(group.guarded("x", [] { TORCH_CHECK(false, "a shape"); }), c10::Error);
  EXPECT_EQ(group.guarded("x", [] { return 3; }), 3);
}

TEST(Group, NcclNeedsCuda) {
#ifndef USE_CUDA
  GroupOptions options;
  options.nccl = true;
  EXPECT_THROW(Group(Environment(), options), UserError);
#endif
}

}  // namespace
}  // namespace flashstep
