#include "flashstep/measure/spans.h"

#include <gtest/gtest.h>

namespace flashstep::measure {
namespace {

TEST(Spans, OverlappingAndTouchingOnesBecomeOne) {
  const std::vector<Span> expected = {{0, 3}, {4, 6}};
  EXPECT_EQ(merged({{4, 5}, {1, 3}, {0, 2}, {5, 6}, {2, 2.5}}), expected);
  EXPECT_TRUE(merged({{1, 1}, {3, 2}}).empty());
  const std::vector<Span> closed = {{0, 2.5}, {4, 5}};
  EXPECT_EQ(merged({{0, 1}, {1.5, 2.5}, {4, 5}}, 0.5), closed);
}

TEST(Spans, TimeThatIsCoveredTwiceCountsOnce) {
  EXPECT_DOUBLE_EQ(covered_seconds({{0, 2}, {1, 3}, {5, 6}}), 4);
  EXPECT_DOUBLE_EQ(covered_seconds({}), 0);
}

TEST(Spans, SharedTime) {
  const std::vector<Span> compute = {{0, 4}, {5, 8}, {7, 9}};
  EXPECT_DOUBLE_EQ(shared_seconds(compute, {{3, 6}}), 2);           // across a gap
  EXPECT_DOUBLE_EQ(shared_seconds({{3, 6}}, compute), 2);           // either way round
  EXPECT_DOUBLE_EQ(shared_seconds(compute, {{1, 2}, {1, 3}}), 2);   // once, though sent twice
  EXPECT_DOUBLE_EQ(shared_seconds(compute, {{4, 5}, {9, 12}}), 0);  // only touching
  EXPECT_DOUBLE_EQ(shared_seconds(compute, {{-1, 100}}), 8);
  EXPECT_DOUBLE_EQ(shared_seconds(compute, {}), 0);
}

}  // namespace
}  // namespace flashstep::measure
