#include "flashstep/comm/agreement.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "flashstep/comm/outside_collectives.h"
#include "flashstep/testing/ranks.h"

namespace flashstep {
namespace {

TEST(Agreement, NamesTheFirstRankAndLineThatDiffer) {
  testing::run_ranks(3, [](const Environment& environment) {
    const Group group(environment);
    const int rank = group.rank();
    EXPECT_FALSE(first_difference({}, group));
    EXPECT_FALSE(first_difference({"a", "", "b = 1"}, group));
    const auto both = first_difference({"a", rank == 0 ? "b" : "c", str("d", rank)}, group);
    ASSERT_TRUE(both);
    EXPECT_EQ(both->rank, 1);
    EXPECT_EQ(both->line, 1u);
    EXPECT_EQ(both->first, "b");
    EXPECT_EQ(both->other, "c");
    const auto last = first_difference({"same", rank == 2 ? "other" : "mine"}, group);
    ASSERT_TRUE(last);
    EXPECT_EQ(last->rank, 2);
    EXPECT_EQ(last->first + " " + last->other, "mine other");
    std::vector<std::string> lines = {"one"};
    if (rank == 1) lines.push_back("two");
    const auto longer = first_difference(lines, group);
    ASSERT_TRUE(longer);
    EXPECT_EQ(longer->line, 1u);
    EXPECT_EQ(longer->first + "/" + longer->other, "/two");
  });
}

TEST(Agreement, WhatRankZeroThrowsAllThrow) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    int calls = 0;
    on_first_rank(&group, "", [&] { ++calls; });
    EXPECT_EQ(calls, group.is_first() ? 1 : 0);
    const auto sentence = [&](const auto& error) {
      try {
        on_first_rank(&group, "rank 0: ", [&] { throw error; });
      } catch (const AgreedError& thrown) {
        return str(thrown.what(), " of ", thrown.tensor());
      } catch (const MachineError& thrown) {
        return std::string(thrown.what());
      }
      return std::string("nothing");
    };
    EXPECT_EQ(sentence(UserError("expected w", "w")), "expected w of w");
    EXPECT_EQ(sentence(MachineError("full")), group.is_first() ? "full" : "rank 0: full");
    on_first_rank(nullptr, "", [&] { ++calls; });
    EXPECT_EQ(calls, group.is_first() ? 2 : 1);
  });
}

TEST(Agreement, RankZeroWorksForLongerThanACollectiveMayTake) {
  testing::run_ranks(2, [](const Environment& environment) {
    GroupOptions options;
    options.timeouts.collective = std::chrono::seconds(2);
    const Group group(environment, options);
    const auto work = [] { std::this_thread::sleep_for(std::chrono::seconds(5)); };
    EXPECT_NO_THROW(on_first_rank(&group, "", work));
    if (!group.is_first()) work();
    EXPECT_NO_THROW(wait_for_all(&group, "waiting for rank 1"));
  });
}

TEST(Agreement, LaunchedCollectivesAreEvened) {
  testing::run_ranks(3, [](const Environment& environment) {
    const Group group(environment);
    for (int i = 0; i < 2 * group.rank(); ++i) group.outside()->count();
    even_launched(group);
    EXPECT_EQ(group.outside()->launched(), 4u);
  });
}

}  // namespace
}  // namespace flashstep
