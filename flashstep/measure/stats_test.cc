#include "flashstep/measure/stats.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace flashstep::measure {
namespace {

using Values = std::vector<double>;

TEST(Stats, KnownValues) {
  const Values values = {9, 2, 4, 4, 5, 4, 7, 5};  // sorted 2 4 4 4 5 5 7 9
  EXPECT_DOUBLE_EQ(mean(values), 5);
  EXPECT_DOUBLE_EQ(sample_stddev(values), std::sqrt(32.0 / 7));
  EXPECT_DOUBLE_EQ(median(values), 4.5);
  EXPECT_DOUBLE_EQ(quantile(values, 0.1), 2 + 0.7 * 2);
  EXPECT_DOUBLE_EQ(quantile(values, 0.9), 7 + 0.3 * 2);
  EXPECT_DOUBLE_EQ(quantile(values, 0), 2);
  EXPECT_DOUBLE_EQ(quantile(values, 1), 9);
  EXPECT_NEAR(geometric_mean(Values{1, 10, 100}), 10, 1e-12);
}

TEST(Stats, FewValues) {
  for (const double undefined : {mean({}), sample_stddev({}), quantile({}, 0.3), median({}),
                                 geometric_mean({}), sample_stddev(Values{3})})
    EXPECT_TRUE(std::isnan(undefined));
  for (const double one : {mean(Values{3}), quantile(Values{3}, 0.1), median(Values{3})})
    EXPECT_EQ(one, 3);
  EXPECT_DOUBLE_EQ(median(Values{4, 2}), 3);
  EXPECT_DOUBLE_EQ(quantile(Values{4, 2}, 0.1), 2.2);
  EXPECT_DOUBLE_EQ(sample_stddev(Values{4, 2}), std::sqrt(2.0));
}

TEST(Stats, NanDoesNotHide) {
  for (const Values& values : {Values{NAN, 1, 2}, Values{1, NAN, 2}, Values{1, 2, NAN}}) {
    for (const double v : {mean(values), sample_stddev(values), quantile(values, 0.1),
                           median(values), quantile(values, 1), geometric_mean(values)})
      EXPECT_TRUE(std::isnan(v));
  }
}

TEST(Stats, SmallSpreadAroundALargeMean) {
  EXPECT_NEAR(sample_stddev(Values{1e9 + 1, 1e9 + 2, 1e9 + 3}), 1, 1e-9);
  EXPECT_EQ(sample_stddev(Values(5, 0.1)), 0);
}

TEST(Stats, InfinityIsAValue) {
  EXPECT_EQ(median(Values{1, INFINITY, 2}), 2);
  EXPECT_EQ(quantile(Values{1, INFINITY, INFINITY}, 0.9), INFINITY);
}

TEST(Stats, GeometricMeanOfZeroAndNegative) {
  EXPECT_EQ(geometric_mean(Values{0, 5}), 0);
  EXPECT_TRUE(std::isnan(geometric_mean(Values{-1, 5})));
}

}  // namespace
}  // namespace flashstep::measure
