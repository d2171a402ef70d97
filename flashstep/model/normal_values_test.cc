#include "flashstep/model/normal_values.h"

#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "flashstep/base/rng.h"

namespace flashstep {
namespace {

// With every instruction set that this processor has, by itself.
void on_each_instruction_set(const std::function<void()>& body) {
  for (int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    SCOPED_TRACE(hwy::TargetName(rest & -rest));
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().DeInit();
    body();
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
}

TEST(NormalValues, QuantileInvertsTheDistribution) {
  for (const double x : {-6.0, -3.0, -1.7, -1.0, -0.3, 0.0, 0.2, 1.1, 1.5, 2.9}) {
    EXPECT_NEAR(normal_quantile(0.5 * std::erfc(-x / std::sqrt(2.0))), x,
                2e-13 * std::exp(x * x / 2) + 1e-14);
  }
}

TEST(NormalValues, QuantilesAreTheSameWithEveryInstructionSet) {
  Rng rng(3);
  std::vector<double> probabilities(1000), expected;
  for (double& probability : probabilities) probability = rng.uniform();
  for (const double probability : probabilities) expected.push_back(normal_quantile(probability));
  on_each_instruction_set([&] {
    for (size_t i = 0; i < probabilities.size(); ++i)
      ASSERT_EQ(normal_quantile(probabilities[i]), expected[i]) << probabilities[i];
  });
}

TEST(NormalValues, AreTheDrawsOfRngInAnyRange) {
  const NormalDraws draws = {.standard_deviation = 0.3, .lowest = 0.00135, .seed = 5, .stream = 9};
  for (const uint64_t first : {uint64_t{0}, uint64_t{7}, (uint64_t{1} << 33) - 3}) {
    for (const size_t count : {size_t{1}, size_t{511}, size_t{512}, size_t{3000}}) {
      std::vector<float> expected(count);
      Rng rng(draws.seed, draws.stream, first);
      for (float& value : expected) {
        const double probability = draws.lowest + rng.uniform() * (1 - 2 * draws.lowest);
        value = static_cast<float>(normal_quantile(probability) * draws.standard_deviation);
      }
      on_each_instruction_set([&] {
        std::vector<float> values(count + 1, 42.0F);
        normal_values(draws, first, count, values.data());
        EXPECT_EQ(values.back(), 42.0F);
        values.pop_back();
        EXPECT_EQ(values, expected) << "first " << first;
      });
    }
  }
}

}  // namespace
}  // namespace flashstep
