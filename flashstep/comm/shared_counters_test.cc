#include "flashstep/comm/shared_counters.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "flashstep/testing/ranks.h"

namespace flashstep {
namespace {

// Each rank counts up to where the one before it is: none gets there unless all see the same
// memory.
TEST(SharedCounters, EveryRankSeesTheOthersCount) {
  for (const int ranks : {2, 3}) {
    testing::run_ranks(ranks, [](const Environment& environment) {
      const Group group(environment);
      const auto counters = SharedCounters::make(group, 3);
      ASSERT_NE(counters, nullptr);
      const int before = (group.rank() + group.world_size() - 1) % group.world_size();
      for (int kind = 0; kind < 3; ++kind) {
        for (int rank = 0; rank < group.world_size(); ++rank) {
          EXPECT_LE(counters->at(kind, rank), 100U * (kind + 1)) << "0 at first";
        }
      }
      group.barrier();
      for (uint32_t step = 1; step <= 100; ++step) {
        for (int kind = 0; kind < 3; ++kind) {
          counters->at(kind, group.rank()) = step * (kind + 1);
          while (counters->at(kind, before) < step * (kind + 1))
            std::this_thread::sleep_for(std::chrono::microseconds(10));
        }
      }
      group.barrier();
      for (int kind = 0; kind < 3; ++kind) {
        for (int rank = 0; rank < group.world_size(); ++rank)
          EXPECT_EQ(counters->at(kind, rank), 100U * (kind + 1));
      }
    });
  }
}

TEST(SharedCounters, TwoSetsAreApart) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    const auto first = SharedCounters::make(group, 1), second = SharedCounters::make(group, 1);
    ASSERT_TRUE(first && second);
    first->at(0, group.rank()) = 7;
    group.barrier();
    EXPECT_EQ(first->at(0, 1 - group.rank()), 7U);
    EXPECT_EQ(second->at(0, 1 - group.rank()), 0U);
  });
}

}  // namespace
}  // namespace flashstep
