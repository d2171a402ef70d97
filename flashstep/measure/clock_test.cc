#include "flashstep/measure/clock.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace flashstep::measure {
namespace {

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST(Clock, CallsAreCountedAndWarmUpIsNot) {
  int calls = 0;
  EXPECT_EQ(time_calls([&] { ++calls; }, {.warmup = 2, .max_calls = 7, .max_seconds = 60}).size(),
            7U);
  EXPECT_EQ(calls, 9);
  // Late from the first call on: no more than the fewest.
  const auto slow =
      time_calls([] { sleep_ms(5); }, {.warmup = 0, .min_calls = 3, .max_seconds = 0});
  ASSERT_EQ(slow.size(), 3U);
  for (const double seconds : slow) EXPECT_GE(seconds, 0.005);
}

}  // namespace
}  // namespace flashstep::measure
