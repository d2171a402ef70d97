#include "flashstep/measure/ticks.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace flashstep::measure {
namespace {

std::string labels(double low, double high, Scale scale = Scale::kLinear, int wanted = 5) {
  std::string out;
  for (const Tick& tick : choose_ticks({low, high}, scale, wanted))
    if (!tick.label.empty()) out += (out.empty() ? "" : " ") + tick.label;
  return out;
}

TEST(Ticks, LinearLabelsAreRoundAndShort) {
  EXPECT_EQ(labels(0, 1), "0 0.2 0.4 0.6 0.8 1.0");
  EXPECT_EQ(labels(0, 100), "0 20 40 60 80 100");
  EXPECT_EQ(labels(1.13, 4.27), "1.5 2.0 2.5 3.0 3.5 4.0");
  EXPECT_EQ(labels(-3, 3), "−3 −2 −1 0 1 2 3");
  EXPECT_EQ(labels(0, 8000), "0 2,000 4,000 6,000 8,000");
  EXPECT_EQ(labels(0, 100000), "0 20k 40k 60k 80k 100k");
  EXPECT_EQ(labels(0, 2.5e6), "0 0.5M 1.0M 1.5M 2.0M 2.5M");
  EXPECT_EQ(labels(0, 3e-4), "0 0.5×10⁻⁴ 1.0×10⁻⁴ 1.5×10⁻⁴ 2.0×10⁻⁴ 2.5×10⁻⁴ 3.0×10⁻⁴");
}

TEST(Ticks, LabelsTellNeighboursApart) {
  EXPECT_EQ(labels(1000000, 1000004), "1,000,000 1,000,001 1,000,002 1,000,003 1,000,004");
  EXPECT_EQ(labels(2.0001, 2.0004, Scale::kLinear, 3), "2.0001 2.0002 2.0003 2.0004");
}

TEST(Ticks, LogarithmicLabels) {
  EXPECT_EQ(labels(1, 1e5, Scale::kLog), "1 10 100 1,000 10k 100k");
  EXPECT_EQ(labels(1, 100, Scale::kLog, 6), "1 2 5 10 20 50 100");
  EXPECT_EQ(labels(1e-7, 1e-3, Scale::kLog), "10⁻⁷ 10⁻⁶ 10⁻⁵ 0.0001 0.001");
  EXPECT_EQ(labels(1e-20, 1e20, Scale::kLog, 5), "10⁻¹⁶ 10⁻⁸ 1 100M 10¹⁶");
  EXPECT_EQ(labels(2, 3, Scale::kLog), "2.0 2.2 2.4 2.6 2.8 3.0");  // within one decade
  EXPECT_EQ(labels(100, 20000, Scale::kLog2), "128 256 512 1,024 2,048 4,096 8,192 16,384");
}

TEST(Ticks, EveryIntervalHasTicksInside) {
  for (double center : {0.0, 1.0, -7.3, 1e-280, 3.3e9, 1e299, -1e299}) {
    for (double spread : {0.0, 1e-300, 1e-12, 1e-3, 1.0, 1e7, 1e299}) {
      for (const Scale scale : {Scale::kLinear, Scale::kLog, Scale::kLog2}) {
        const Interval interval = interval_around({center, center + spread}, scale, 0.05);
        ASSERT_LT(interval.low, interval.high);
        ASSERT_TRUE(std::isfinite(interval.low) && std::isfinite(interval.high));
        const auto ticks = choose_ticks(interval, scale, 5);
        ASSERT_GE(ticks.size(), 2U) << interval.low << " " << interval.high;
        ASSERT_LE(ticks.size(), 100U);
        int labelled = 0;
        for (const Tick& tick : ticks) {
          const double position = position_on(interval, scale, tick.value);
          EXPECT_TRUE(position >= -1e-6 && position <= 1 + 1e-6) << tick.value;
          labelled += !tick.label.empty();
        }
        EXPECT_GE(labelled, 2) << interval.low << " " << interval.high << " "
                               << static_cast<int>(scale);
      }
    }
  }
}

TEST(Ticks, IntervalsLeaveOutWhatCannotBeDrawn) {
  const double inf = std::numeric_limits<double>::infinity();
  const Interval some = interval_around({std::nan(""), 2, inf, 4, -inf, 1e305}, Scale::kLinear, 0);
  EXPECT_EQ(some.low, 2);
  EXPECT_EQ(some.high, 4);
  const Interval positive = interval_around({-1, 0, 1, 1000}, Scale::kLog, 0);
  EXPECT_DOUBLE_EQ(positive.low, 1);
  EXPECT_DOUBLE_EQ(positive.high, 1000);
  EXPECT_EQ(interval_around({}, Scale::kLinear, 0.1).high, 1);
  EXPECT_EQ(interval_around({-5}, Scale::kLog, 0.1).high, 10);
}

}  // namespace
}  // namespace flashstep::measure
