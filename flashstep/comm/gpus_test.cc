#include "flashstep/comm/gpus.h"

#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/testing/ranks.h"

namespace flashstep {
namespace {

// The machine's GPUs that its ranks get, each of which sees those of its line.
std::set<int> gpus_of(const std::vector<std::vector<int>>& visible) {
  std::set<int> gpus;
  for (size_t rank = 0; rank < visible.size(); ++rank) {
    const auto count = static_cast<int>(visible[rank].size());
    gpus.insert(visible[rank][gpu_of_rank(count, static_cast<int>(rank))]);
  }
  return gpus;
}

std::string mistake(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no mistake";
}

TEST(GpuOfRank, IsItsLocalRankWhereAllSeeAll) {
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(gpu_of_rank(/*visible=*/4, rank), rank);
  EXPECT_EQ(gpus_of({{0, 1, 2, 3}, {0, 1, 2, 3}}), (std::set<int>{0, 1}));
}

// srun --gpus-per-task, a container a rank, CUDA_VISIBLE_DEVICES by hand.
TEST(GpuOfRank, IsOneOfThoseThatItSees) {
  EXPECT_EQ(gpus_of({{3}, {2}, {1}, {0}}).size(), 4u);
  EXPECT_EQ(gpus_of({{0, 1}, {2, 3}}).size(), 2u);
  EXPECT_EQ(gpus_of({{0, 1}, {2, 3}, {4, 5}, {6, 7}}).size(), 4u);
  EXPECT_EQ(gpus_of({{0, 1}, {0, 1}, {2, 3}, {2, 3}}).size(), 4u);  // those of its socket
  EXPECT_EQ(gpus_of({{0}, {1, 2, 3}, {1, 2, 3}, {1, 2, 3}}).size(), 4u);
}

TEST(GpuOfRank, NeedsOne) {
  EXPECT_EQ(mistake([] { gpu_of_rank(0, 1); }),
            "[comm] expected a GPU for local rank 1, got none; see to CUDA_VISIBLE_DEVICES, or "
            "train on the CPU");
}

const std::vector<std::string> kNames = {"rank 0 (a)", "rank 1 (a)", "rank 2 (b)"};

TEST(CheckGpus, DifferentOnesOrNone) {
  check_gpus({"GPU-0", "GPU-1", "GPU-2"}, kNames);
  check_gpus({"", "", ""}, kNames);
  check_gpus({"GPU-0"}, {});
  check_gpus({""}, {});
}

TEST(CheckGpus, NamesTwoWithTheSame) {
  EXPECT_EQ(mistake([] {
              check_gpus({"GPU-0", "GPU-1", "GPU-0"}, kNames);
            }),
            "[comm] expected a GPU of its own for each rank, got GPU-0 for both rank 0 (a) and "
            "rank 2 (b); start no more ranks on a machine than it has GPUs, let each see its own "
            "(CUDA_VISIBLE_DEVICES), or train on the CPU");
}

TEST(CheckGpus, NamesOneWithAndOneWithout) {
  EXPECT_EQ(mistake([] {
              check_gpus({"", "", "GPU-7"}, kNames);
            }),
            "[comm] expected a GPU for every rank, or for none, got GPU-7 on rank 2 (b) and none "
            "on rank 0 (a); let every rank see a GPU, or train on the CPU everywhere");
  EXPECT_NE(mistake([] {
              check_gpus({"GPU-7", "GPU-7", ""}, kNames);
            }).find("GPU-7 on rank 0 (a) and none on rank 2 (b)"),
            std::string::npos);
}

// As a group does before NCCL has a part in it: every rank says the same and ends as for a mistake.
TEST(CheckGpus, IsHeardOnEveryRank) {
  testing::start_ranks(
      3,
      [](const Environment& environment) {
        const Group group(environment);
        const std::string own = group.rank() == 1 ? "" : str("GPU-", group.rank());
        check_gpus(group.all_gather(own), kNames);
      },
      [](testing::Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(60)) << ranks.all_output();
        for (int rank = 0; rank < 3; ++rank) {
          EXPECT_EQ(ranks.exit_code(rank), 2) << ranks.all_output();
          EXPECT_NE(ranks.output(rank).find("got GPU-0 on rank 0 (a) and none on rank 1 (a)"),
                    std::string::npos)
              << ranks.all_output();
        }
      });
}

}  // namespace
}  // namespace flashstep
