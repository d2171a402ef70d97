#include "flashstep/report/profile_sums.h"

#include <gtest/gtest.h>

#include "flashstep/report/chrome_trace.h"
#include "flashstep/report/test_gpu_like_trace.h"

namespace flashstep::report {
namespace {

constexpr double kMicro = 1e-6;

ProfileSums known_sums() {
  const TraceEvents trace = parse_chrome_trace(gpu_like_trace(), "x");
  return sums_of(trace, attribute(trace));
}

TEST(ProfileSums, AddsUpByPassClassAndRange) {
  const ProfileSums sums = known_sums();
  EXPECT_TRUE(sums.on_gpu);
  EXPECT_EQ(sums.steps, 1);
  const auto micros = [&](const CellFilter& filter) {
    return add_up(sums, filter).seconds / kMicro;
  };
  EXPECT_NEAR(micros({}), 62, 1e-9);
  EXPECT_NEAR(micros({.passes = {Pass::kForward}}), 15, 1e-9);
  EXPECT_NEAR(micros({.passes = {Pass::kBackward}}), 27, 1e-9);
  EXPECT_NEAR(micros({.passes = {Pass::kOptimizer}}), 20, 1e-9);
  EXPECT_NEAR(micros({.classes = {WorkClass::kMatmul}}), 30, 1e-9);
  EXPECT_NEAR(micros({.classes = {WorkClass::kMatmul}, .range = "attention"}), 30, 1e-9);
  EXPECT_NEAR(micros({.range = "layers.*"}), 42, 1e-9);
  EXPECT_NEAR(micros({.range = "no such"}), 0, 1e-9);
  EXPECT_EQ(add_up(sums, {.classes = {WorkClass::kMatmul}}).flops, 2 * (4 * 8 * 16 + 8 * 4 * 16));
  EXPECT_EQ(add_up(sums, {.classes = {WorkClass::kMatmul}}).calls, 2);
  ASSERT_EQ(sums.block_seconds.size(), 2u);
  EXPECT_NEAR(sums.block_seconds[0][1] / kMicro, 22, 1e-9) << "backward of layers.0";
  EXPECT_NEAR(sums.block_seconds[1][0] / kMicro, 5, 1e-9) << "forward of layers.1";
}

TEST(ProfileSums, TellsBusyFromIdle) {
  const ProfileSums sums = known_sums();
  EXPECT_NEAR(sums.wall_seconds / kMicro, 100, 1e-9);
  // 30-40, 42-47, 50-55, 56-78, 80-95: the copy runs beside the update.
  EXPECT_NEAR(sums.busy_seconds / kMicro, 57, 1e-3);
  EXPECT_NEAR(sums.idle_seconds() / kMicro, 43, 1e-3);
  EXPECT_NEAR(sums.passes[0].host_seconds / kMicro, 30, 1e-9);
  EXPECT_NEAR(sums.passes[2].busy_seconds / kMicro, 15, 1e-3);
}

TEST(ProfileSums, SortsNamesByTheirTime) {
  const auto names = by_name(known_sums());
  ASSERT_EQ(names.size(), 6u);
  EXPECT_EQ(names[0].name, "nvjet_tst_64x64");
  EXPECT_EQ(names[0].passes[0].calls, 1);
  EXPECT_EQ(names[0].total().calls, 2);
  EXPECT_EQ(names.back().work_class, WorkClass::kReduction);
}

TEST(ProfileSums, RangesHoldWhatLiesInThem) {
  const ProfileSums sums = known_sums();
  std::vector<std::string> paths;
  for (const RangeSums& row : by_range(sums))
    paths.push_back(join(sums.ranges.path(row.range), "/"));
  EXPECT_EQ(paths, (std::vector<std::string>{"layers.*", "layers.*/norm", "layers.*/attention"}));
  const RangeSums blocks = by_range(sums).front();
  EXPECT_NEAR(blocks.passes[0].seconds / kMicro, 15, 1e-9);
  EXPECT_NEAR(blocks.passes[1].seconds / kMicro, 27, 1e-9);
  EXPECT_EQ(blocks.passes[0].flops, 2 * 4 * 8 * 16);
}

TEST(ProfileSums, SaysWhatNoRuleKnows) {
  EXPECT_EQ(unclassified_share(known_sums()), 0);
  const TraceEvents trace = parse_chrome_trace(TraceText()
                                                   .device("kernel", "mystery", 0, 1, 0, 1)
                                                   .device("kernel", "nvjet", 2, 3, 0, 2)
                                                   .text(),
                                               "x");
  const ProfileSums sums = sums_of(trace, attribute(trace));
  EXPECT_DOUBLE_EQ(unclassified_share(sums), 0.25);
  EXPECT_EQ(unclassified_names(sums), std::vector<std::string>{"mystery"});
  EXPECT_NEAR(sums.wall_seconds / kMicro, 5, 1e-9) << "without ranges: first to last";
}

}  // namespace
}  // namespace flashstep::report
