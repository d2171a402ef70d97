#include "flashstep/bench/replica.h"

#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "flashstep/bench/test_update_trace.h"
#include "flashstep/bench/test_workload.h"
#include "flashstep/testing/ranks.h"

namespace flashstep::tools {
namespace {

TEST(Marks, SecondsBetweenMoments) {
  Marks marks(at::kCPU);
  EXPECT_TRUE(marks.seconds().empty());
  for (int i = 0; i < 3; ++i) marks.set();
  const auto seconds = marks.seconds();
  ASSERT_EQ(seconds.size(), 2u);
  for (const double s : seconds) EXPECT_GE(s, 0);
  EXPECT_EQ(marks.leads(), std::vector<double>(3, 0.0)) << "a CPU is no device that lags behind";
}

void on_ranks(int ranks, const Workload& workload,
              const std::function<void(Replica&, const Group&)>& body) {
  testing::run_ranks(ranks, [&](const Environment& environment) {
    Group group(environment);
    Replica replica(workload, group, at::kCPU);
    body(replica, group);
  });
}

TEST(Replica, EveryWrapperUpdatesAsOneProcessDoes) {
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    on_ranks(2, small_workload("step", precision), [](Replica& replica, const Group&) {
      for (const char* name : {"naive", "flat", "overlapped", "bucketed 0.01", "torch 0.01"}) {
        // Two ranks: one order of every sum, and halving is exact.
        EXPECT_EQ(replica.weight_error(division_by_name(name), 3), 0) << name;
      }
      // What sends nothing is told from what does.
      EXPECT_GT(replica.weight_error(division_by_name("none"), 3), 0.05);
    });
  }
}

TEST(Replica, ThreeRanksRoundInAnotherOrder) {
  on_ranks(3, small_workload(), [](Replica& replica, const Group&) {
    EXPECT_LE(replica.weight_error(division_by_name("bucketed 0.01"), 3), 1e-5);
  });
}

TEST(Replica, TheUpdateIsCutOutOfItsStep) {
  on_ranks(2, small_workload(), [](Replica& replica, const Group& group) {
    expect_updates_cut_out(replica, "bucketed 0.01", group.is_first());
  });
}

TEST(Replica, SaysWhichBucketsAreInUse) {
  on_ranks(2, small_workload(), [](Replica& replica, const Group&) {
    Record record;
    replica.divide(division_by_name("bucketed 0"));
    replica.describe(record);
    EXPECT_EQ(record.number("bucket_megabytes"), 25) << "what Gloo gets";
    EXPECT_TRUE(contains(record.text("buckets"), "(chosen)"));
    EXPECT_EQ(record.text("gradients by"), "Gloo");
    EXPECT_EQ(record.text("updates by"), "");
    replica.divide({.wrapper = "none"});
    replica.describe(record);
    EXPECT_EQ(record.number("bucket_megabytes"), 0);
    EXPECT_EQ(record.text("buckets") + record.text("gradients by"), "");
  });
}

TEST(Replica, StepsInTheirParts) {
  on_ranks(2, small_workload(), [](Replica& replica, const Group& group) {
    replica.divide(division_by_name("bucketed 0.01"));
    const auto times = replica.run(3);
    ASSERT_EQ(times.size(), 3u);
    for (const StepTimes& t : times) {
      EXPECT_GT(std::min({t.forward, t.backward, t.optimizer}), 0);
      EXPECT_DOUBLE_EQ(t.total, t.forward + t.backward + t.optimizer);
      EXPECT_GE(t.waited, 0);
      EXPECT_LT(t.waited, t.backward);
    }
    const Trace trace = replica.trace_step();
    EXPECT_EQ(trace.failure, "");
    EXPECT_EQ(trace.communication_seconds() > 0, group.is_first());
  });
}

}  // namespace
}  // namespace flashstep::tools
