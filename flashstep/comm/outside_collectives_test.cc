#include "flashstep/comm/outside_collectives.h"

#include <gtest/gtest.h>

namespace flashstep::comm {
namespace {

TEST(OutsideCollectives, InterruptsWhatIsThere) {
  const auto outside = std::make_shared<OutsideCollectives>();
  int first = 0, second = 0, late = 0;
  auto one = outside->on_loss([&] { ++first; });
  const auto two = outside->on_loss([&] { ++second; });
  EXPECT_EQ(first + second, 0);
  one.reset();
  outside->interrupt();
  EXPECT_EQ(first, 0) << "gone before";
  EXPECT_EQ(second, 1);
  const auto three = outside->on_loss([&] { ++late; });
  EXPECT_EQ(late, 1) << "came after the loss";
  outside->interrupt();
  EXPECT_EQ(second, 2);
  EXPECT_EQ(late, 2);
}

TEST(OutsideCollectives, Counts) {
  OutsideCollectives outside;
  outside.count();
  outside.count();
  EXPECT_EQ(outside.launched(), 2U);
}

}  // namespace
}  // namespace flashstep::comm
