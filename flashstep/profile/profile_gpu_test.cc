// A step on a GPU as LibTorch's profiler shows it: every kernel has a pass, a range and a class.
#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/bench/test_table.h"
#include "flashstep/profile/profile.h"
#include "flashstep/profile/test_recorded.h"
#include "flashstep/testing/gpus.h"
#include "flashstep/trace/trace_events.h"

namespace flashstep::tools {
namespace {

constexpr int kSteps = 2;

struct Case {
  const char* attention;
  const char* precision;
};

Workload small_workload(const Case& c) {
  Workload workload;
  workload.model = model_by_name("128/256/2/2");
  workload.model.context_length = 128;
  workload.model.attention = c.attention;
  workload.precision = c.precision;
  workload.batch_size = 2;
  workload.device = "cuda";
  return workload;
}

std::vector<std::string> names_in_attention(const ProfileSums& sums) {
  std::vector<std::string> names;
  for (const ProfileCell& cell : sums.cells) {
    if (contains(sums.ranges.path(cell.range), "attention")) names.push_back(cell.name);
  }
  return names;
}

class GpuProfile : public ::testing::TestWithParam<Case> {
 public:
  std::filesystem::path file() const {
    return std::filesystem::path(::testing::TempDir()) /
           str("gpu_profile_", GetParam().attention, "_", GetParam().precision, ".json");
  }
  void TearDown() override { std::filesystem::remove(file()); }
};

TEST_P(GpuProfile, EveryKernelHasAPassARangeAndAClass) {
  FLASHSTEP_NEED_GPUS(1);
  const std::string attention = GetParam().attention;
  const ProfileSums sums = sums_of(recorded(small_workload(GetParam()), kSteps));
  EXPECT_TRUE(sums.on_gpu);
  EXPECT_EQ(sums.steps, kSteps);
  EXPECT_GT(sums.busy_seconds, 0);
  EXPECT_LE(sums.busy_seconds, sums.wall_seconds);
  EXPECT_LE(unclassified_share(sums), 0.02) << join(unclassified_names(sums));
  const double all = add_up(sums, {}).seconds;
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kOptimizer})
    EXPECT_GT(add_up(sums, {.passes = {pass}}).seconds, 0) << pass_name(pass);
  EXPECT_LT(add_up(sums, {.passes = {Pass::kOutside}}).seconds, 0.05 * all);

  std::map<std::string, RangeSums> ranges;
  double in_ranges = 0;
  for (const RangeSums& row : by_range(sums)) {
    ranges.emplace(join(sums.ranges.path(row.range), "/"), row);
    if (sums.ranges.parent(row.range) == RangeTree::kRoot) in_ranges += row.passes[0].seconds;
  }
  // Outside: the first bf16 copies of weights.
  EXPECT_GE(in_ranges, 0.95 * add_up(sums, {.passes = {Pass::kForward}}).seconds);
  std::vector<std::string> paths = {"embedding", "layers.*/norm",
                                    "layers.*/self-attention/attention",
                                    "layers.*/feed-forward/swiglu", "loss"};
  if (attention == "naive") paths.emplace_back("layers.*/self-attention/attention/softmax");
  for (const std::string& path : paths) {
    ASSERT_TRUE(ranges.contains(path)) << path;
    EXPECT_GT(ranges.at(path).passes[0].seconds, 0) << path;
    // The loss computes its gradient in forward; a fused block's backward is one node, of which
    // attention alone is told apart.
    const bool is_fused =
        std::string_view(GetParam().precision) == "bf16" && path.find("attention") == path.npos;
    if (path == "loss" || (is_fused && path != "embedding")) continue;
    EXPECT_GT(ranges.at(path).passes[1].seconds, 0) << path << " has a backward pass";
  }
  // sdpa's are FlashAttention's, cuDNN's or the memory-efficient ones, as LibTorch chooses.
  const WorkClass work = attention == "naive" ? WorkClass::kSoftmax : WorkClass::kAttention;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    EXPECT_GT(add_up(sums, {.passes = {pass}, .classes = {work}, .range = "attention"}).calls, 0)
        << pass_name(pass) << ": " << join(names_in_attention(sums));
  }
}

// What the profiler hands over in the process, and the file it writes, say the same.
TEST_P(GpuProfile, TheChromeTraceSaysTheSame) {
  FLASHSTEP_NEED_GPUS(1);
  const ProfileSums here = sums_of(recorded(small_workload(GetParam()), kSteps, file().string()));
  const ProfileSums there = sums_of(read_chrome_trace(file()));
  EXPECT_EQ(there.steps, kSteps);
  for_each_pass_and_class([&](const CellFilter& filter) {
    EXPECT_EQ(add_up(here, filter).calls, add_up(there, filter).calls);
  });
  EXPECT_EQ(by_range(here).size(), by_range(there).size());
}

INSTANTIATE_TEST_SUITE_P(Attention, GpuProfile,
                         ::testing::Values(Case{"naive", "fp32"}, Case{"naive", "bf16"},
                                           Case{"cuda", "fp32"}, Case{"cuda", "bf16"},
                                           Case{"sdpa", "fp32"}, Case{"sdpa", "bf16"}),
                         [](const auto& test) {
                           return str(test.param.attention, "_", test.param.precision);
                         });

// The handout's widths, by which libraries choose their kernels; of their equal blocks two.
class GpuProfileSizes : public ::testing::TestWithParam<std::string> {};

TEST_P(GpuProfileSizes, NearlyAllOfTheTimeHasAClass) {
  FLASHSTEP_NEED_GPUS(1);
  for (const char* attention : {"naive", "auto", "sdpa"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      for (const int64_t context : {128, 1024}) {
        Workload workload;
        workload.model = model_by_name(GetParam());
        workload.model.num_layers = 2;
        workload.model.context_length = context;
        workload.model.attention = attention;
        workload.precision = precision;
        workload.device = "cuda";
        const ProfileSums sums = sums_of(recorded(workload, kSteps));
        EXPECT_GT(sums.busy_seconds, 0);
        EXPECT_LE(unclassified_share(sums), 0.02)
            << attention << ", " << precision << ", context " << context << ": "
            << join(unclassified_names(sums));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Handout, GpuProfileSizes, ::testing::ValuesIn(sizes_named({"all"})),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

// Four blocks of the largest size in float32: kernels of milliseconds, so that the GPU is the
// bound, not the host that launches them. Then the sum of the kernels is the step by the clock.
TEST(GpuProfileTimer, AgreesWithTheKernelsWhereTheGpuIsTheBound) {
  FLASHSTEP_NEED_GPUS(1);
  ProfileOptions options;
  options.axes.sizes = {"2.7B"};
  options.axes.contexts = {512};
  options.axes.attentions = {"naive", "auto"};
  options.axes.common.model.num_layers = 4;
  options.axes.common.device = "cuda";
  options.inference = false;
  const measure::Table table = profile_report(options).table;
  int compared = 0;
  for (size_t row = 0; row < table.rows.size(); ++row) {
    if (cell_at(table, row, "pass") != measure::Cell("in all")) continue;
    EXPECT_NEAR(number_at(table, row, "kernels / timer"), 100, 2)
        << text_at(table, row, "attention");
    ++compared;
  }
  EXPECT_EQ(compared, 2) << to_text(table);
}

}  // namespace
}  // namespace flashstep::tools
