// Groups that are parts of a group.
#include <chrono>
#include <csignal>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/sentences.h"

namespace flashstep {
namespace {

at::Tensor sum_over(const Group& group, at::Tensor tensor) {
  std::vector<at::Tensor> tensors = {tensor};
  group.wait(group.guarded("all-reduce", [&] { return group.process_group().allreduce(tensors); }),
             "all-reduce");
  return tensor;
}

TEST(GroupSplit, PartsAreGroups) {
  testing::run_ranks(4, [](const Environment& environment) {
    const Group group(environment);
    const int rank = group.rank();
    const Group& pair = group.split(rank / 2);
    const Group& across = group.split(rank % 2);
    EXPECT_EQ(pair.world_size(), 2);
    EXPECT_EQ(pair.rank(), rank % 2);
    EXPECT_EQ(across.rank(), rank / 2);
    EXPECT_TRUE(pair.is_on_one_machine());
    EXPECT_EQ(pair.all_reduce(1 << rank, Reduce::kSum), rank < 2 ? 3 : 12);
    EXPECT_EQ(across.all_reduce(1 << rank, Reduce::kSum), rank % 2 == 0 ? 5 : 10);
    EXPECT_EQ(across.broadcast(std::string(rank + 1, 'a'), 1), std::string(rank % 2 + 3, 'a'));
    EXPECT_EQ(sum_over(pair, at::full({1000}, 1.0 + rank)).max().item<double>(), rank < 2 ? 3 : 7);
    EXPECT_EQ(group.all_reduce(1, Reduce::kSum), 4) << "the whole goes on";
    EXPECT_EQ(&group.split(rank / 2), &pair) << "divided as before: the same connections";
    // Parts of other sizes, and of ranks that do not follow each other.
    const Group& odd_one_out = group.split(rank == 1 ? 7 : -7);
    EXPECT_EQ(odd_one_out.world_size(), rank == 1 ? 1 : 3);
    EXPECT_EQ(odd_one_out.all_reduce(1 << rank, Reduce::kSum), rank == 1 ? 2 : 13);
  });
}

TEST(GroupSplit, PartsKnowWhoIsOnTheirMachine) {
  testing::run_ranks(4, [](Environment environment) {
    environment.local_rank = environment.rank % 2;  // as on two machines of two ranks each
    environment.local_world_size = 2;
    environment.master_address = "127.0.0.1";
    const Group group(environment);
    EXPECT_FALSE(group.is_on_one_machine());
    EXPECT_TRUE(group.split(group.rank() / 2).is_on_one_machine());
    EXPECT_FALSE(group.split(group.rank() % 2).is_on_one_machine());
    EXPECT_TRUE(group.split(group.rank()).is_on_one_machine());
  });
}

TEST(GroupSplit, RefusesParts) {
  const Group group{Environment()};
  const Group& part = group.split(0);
  EXPECT_EQ(part.all_reduce(3, Reduce::kSum), 3);
  testing::expect_sentence([&] { part.split(0); }, {"all ranks", "a part of one"});
  const Group others(group.shared_process_group());
  testing::expect_sentence([&] { others.split(0); }, {"all ranks", "made elsewhere"});
}

TEST(GroupSplit, TakesPartsOfAGroupThatOthersMade) {
  testing::run_ranks(4, [](const Environment& environment) {
    const Group group(environment);
    const Group& pair = group.split(group.rank() / 2);
    Group others(group.shared_process_group(), std::chrono::seconds(10));
    EXPECT_TRUE(others.is_on_one_machine());
    others.take_part({0, 0, 1, 1}, std::make_unique<Group>(pair.shared_process_group()));
    const Group& part = others.split(group.rank() / 2);
    EXPECT_EQ(part.world_size(), 2);
    EXPECT_EQ(part.all_reduce(1 << group.rank(), Reduce::kSum), group.rank() < 2 ? 3 : 12);
    testing::expect_sentence([&] { others.split(group.rank() % 2); }, {"a part that was given"});
  });
}

// Its part waits for it; the other part has nothing to do with it.
constexpr int kLost = 3;
TEST(GroupSplit, ALostRankEndsAllParts) {
  testing::start_ranks(
      4,
      [](const Environment& environment) {
        GroupOptions options;
        options.timeouts.silence = std::chrono::milliseconds(3000);
        options.timeouts.grace = std::chrono::milliseconds(2000);
        options.on_stuck = end_process;
        const Group group(environment, options);
        const Group& pair = group.split(group.rank() / 2);
        try {
          for (int step = 0;; ++step) {
            if (step == 20 && group.rank() == kLost) std::raise(SIGKILL);
            sum_over(pair, at::ones({1000}));
          }
        } catch (const LostRank& lost) {
          EXPECT_EQ(lost.rank(), kLost);
          throw;
        }
      },
      [](testing::Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(20)) << ranks.all_output();
        EXPECT_TRUE(ranks.was_killed(kLost));
        for (int rank = 0; rank < kLost; ++rank) {
          EXPECT_TRUE(!ranks.was_killed(rank) && ranks.exit_code(rank) == 1) << ranks.all_output();
          EXPECT_NE(ranks.output(rank).find("flashstep: [all-reduce] rank 3 (process "),
                    std::string::npos)
              << ranks.all_output();
        }
      });
}

// What one rank throws in its part, the others hear by its number in the whole group.
TEST(GroupSplit, ARankThatFailsIsNamedByItsNumber) {
  testing::start_ranks(
      4,
      [](const Environment& environment) {
        const Group group(environment);
        const Group& pair = group.split(group.rank() / 2);
        if (group.rank() == 2) {
          pair.fail("no more paper");
          throw UserError("no more paper");
        }
        for (;;) sum_over(pair, at::ones({1000}));
      },
      [](testing::Ranks& ranks) {
        EXPECT_TRUE(ranks.wait_for_all(20)) << ranks.all_output();
        for (const int rank : {0, 1, 3}) {
          EXPECT_NE(ranks.output(rank).find("rank 2 failed: no more paper"), std::string::npos)
              << ranks.all_output();
        }
      });
}

}  // namespace
}  // namespace flashstep
