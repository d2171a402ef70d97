#include "flashstep/comm/outside_collectives.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace flashstep {
namespace {

void wait_for_more(const std::atomic<int>& count) {
  const int before = count;
  for (int wait = 0; wait < 5000 && count < before + 3; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(count, before + 3);
}

TEST(OutsideCollectives, InterruptsWhatIsThereAgainAndAgain) {
  const auto outside = std::make_shared<OutsideCollectives>();
  std::atomic<int> first = 0, second = 0, late = 0;
  auto one = outside->on_loss([&] { ++first; });
  auto two = outside->on_loss([&] { ++second; });
  EXPECT_EQ(first + second, 0);
  one.reset();
  outside->interrupt();
  EXPECT_GE(second, 1);
  wait_for_more(second);
  const auto three = outside->on_loss([&] { ++late; });
  EXPECT_GE(late, 1) << "came after the loss";
  wait_for_more(late);
  two.reset();
  const int ended = second;
  wait_for_more(late);
  EXPECT_EQ(second, ended);
  EXPECT_EQ(first, 0) << "gone before";
  outside->stop();
  const int stopped = late;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(late, stopped);
}

TEST(OutsideCollectives, Counts) {
  OutsideCollectives outside;
  outside.count();
  outside.count();
  EXPECT_EQ(outside.launched(), 2U);
}

}  // namespace
}  // namespace flashstep
