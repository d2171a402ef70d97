#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/measure/limits.h"

namespace flashstep::measure {
namespace {

// A run that measures the machine first must be the same run as one that finds the cache.
TEST(MeasureLimits, LeavesRandomNumbersAndModesAlone) {
  torch::manual_seed(5);
  const at::Tensor undisturbed = at::rand({4});
  torch::manual_seed(5);
  const bool tf32 = at::globalContext().allowTF32CuBLAS();
  const auto limits = measure_limits("cpu");
  EXPECT_TRUE(at::equal(at::rand({4}), undisturbed));
  EXPECT_TRUE(at::GradMode::is_enabled());
  EXPECT_EQ(at::globalContext().allowTF32CuBLAS(), tf32);

  ASSERT_EQ(limits.size(), 4U);
  EXPECT_EQ(limits[0].name, "matmul fp32");
  EXPECT_EQ(limits[1].name, "matmul bf16");
  EXPECT_EQ(limits[2].name, "matmul fp16");
  EXPECT_EQ(limits[3].name, "memory triad");
}

}  // namespace
}  // namespace flashstep::measure
