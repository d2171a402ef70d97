#include "flashstep/bench/products.h"

#include <cmath>

#include <gtest/gtest.h>

#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"

namespace flashstep::tools {
namespace {

const ProductShape kShape = {at::kBFloat16, at::kFloat, 64, 128, 32, false, true, false};

TEST(BenchProducts, ChoosesWhatSavesAFiftieth) {
  EXPECT_EQ((ProductRun{kShape, {1.0, 0.99, 1.2}}).best(), 0);
  EXPECT_EQ((ProductRun{kShape, {1.0, 0.97, 0.9, 0.95}}).best(), 2);
  EXPECT_EQ((ProductRun{kShape, {1.0, std::nan(""), 0.9}}).best(), 2);
  EXPECT_EQ((ProductRun{kShape, {std::nan(""), std::nan(""), 1.0}}).best(), 2);
  EXPECT_EQ((ProductRun{kShape, {std::nan(""), std::nan("")}}).best(), 0);
  EXPECT_EQ((ProductRun{kShape, {1.0}}).best(), 0);
  EXPECT_NEAR((ProductRun{kShape, {1.0, 0.9}}).share_saved(), 0.1, 1e-12);
  EXPECT_EQ((ProductRun{kShape, {1.0, 0.99}}).share_saved(), 0);
}

TEST(BenchProducts, BringsATableUpToDate) {
  ProductShape other = kShape;
  other.m = 65;
  const auto first = merged_table({}, "GPU", 7, {{kShape, {1, 0.5}}, {other, {1, 1}}});
  ASSERT_EQ(first.size(), 2u);  // the second product's first choice is its best
  EXPECT_EQ(first[1],
            "{\"GPU\", 7, {kBFloat16, kFloat32, 64, 128, 32, kByRows, kByColumns, kAlone}, 1},");
  // Another number, another product; of another GPU everything stays.
  const auto second = merged_table(first, "GPU", 7, {{kShape, {1, 0.9, 0.8}}, {other, {1, 0.5}}});
  ASSERT_EQ(second.size(), 3u);
  EXPECT_EQ(second[1], table_line("GPU", 7, {kShape, {1, 0.9, 0.8}}));
  EXPECT_EQ(second[2], table_line("GPU", 7, {other, {1, 0.5}}));
  EXPECT_EQ(merged_table(second, "other", 7, {{kShape, {1, 1}}}).size(), 3u);
  EXPECT_EQ(merged_table(second, "GPU", 7, {{kShape, {1, 1}}}).size(), 2u);
}

TEST(BenchProducts, TheTableNamesWhatIsThere) {
  for (const TunedProduct& entry : tuned_products()) {
    EXPECT_GT(entry.algorithm, 0);
    EXPECT_LT(entry.algorithm, 16);
    EXPECT_EQ(tuned_algorithm(entry.gpu, entry.version, entry.shape), entry.algorithm);
    EXPECT_EQ(tuned_algorithm(entry.gpu, entry.version + 1, entry.shape), 0);
    EXPECT_EQ(tuned_algorithm("another", entry.version, entry.shape), 0);
  }
  EXPECT_EQ(tuned_algorithm("another", 1, kShape), 0);
}

TEST(BenchProducts, WantsAGpu) {
  if (!measure::list_gpus().empty()) GTEST_SKIP() << "there is one";
  EXPECT_THROW(bench_products({}), UserError);
}

}  // namespace
}  // namespace flashstep::tools
