// A step on a GPU as LibTorch's profiler shows it: every kernel has a pass, a range and a class.
#include <filesystem>
#include <map>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/report/chrome_trace.h"
#include "flashstep/report/model_run.h"
#include "flashstep/report/profile.h"
#include "flashstep/report/profiler_ranges.h"
#include "flashstep/report/recorder.h"
#include "flashstep/testing/gpus.h"

namespace flashstep::report {
namespace {

constexpr int kSteps = 2;

TraceEvents recorded(const std::string& attention, const std::string& file) {
  Workload workload;
  workload.model = model_by_name("128/256/2/2");
  workload.model.context_length = 128;
  workload.model.attention = attention;
  workload.batch_size = 2;
  workload.device = "cuda";
  ModelRun run(workload);
  run.pass();
  const ProfilerRanges listening;
  const auto work = [&] {
    for (int i = 0; i < kSteps; ++i) {
      const measure::ScopedRange range("step");
      run.pass();
      synchronize(run.device());
    }
  };
  return record(run.device(), work, file);
}

class GpuProfile : public ::testing::TestWithParam<const char*> {
 public:
  std::filesystem::path file() const {
    return std::filesystem::path(::testing::TempDir()) / str("gpu_profile_", GetParam(), ".json");
  }
  void TearDown() override { std::filesystem::remove(file()); }
};

TEST_P(GpuProfile, EveryKernelHasAPassARangeAndAClass) {
  FLASHSTEP_NEED_GPUS(1);
  const std::string attention = GetParam();
  const TraceEvents trace = recorded(attention, "");
  const ProfileSums sums = sums_of(trace, attribute(trace));
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
    if (row.depth == 0) in_ranges += row.passes[0].seconds;
  }
  EXPECT_GE(in_ranges, 0.98 * add_up(sums, {.passes = {Pass::kForward}}).seconds);
  std::vector<std::string> paths = {"embedding", "layers.*/norm",
                                    "layers.*/self-attention/attention",
                                    "layers.*/feed-forward/swiglu", "loss"};
  if (attention == "naive") paths.emplace_back("layers.*/self-attention/attention/softmax");
  for (const std::string& path : paths) {
    ASSERT_TRUE(ranges.contains(path)) << path;
    EXPECT_GT(ranges.at(path).passes[0].seconds, 0) << path;
    EXPECT_GT(ranges.at(path).passes[1].seconds, 0) << path << " has a backward pass";
  }
  const WorkClass work = attention == "naive" ? WorkClass::kSoftmax : WorkClass::kAttention;
  EXPECT_GT(add_up(sums, {.classes = {work}, .range = "attention"}).calls, 0);
}

// What the profiler hands over in the process, and the file it writes, say the same.
TEST_P(GpuProfile, TheChromeTraceSaysTheSame) {
  FLASHSTEP_NEED_GPUS(1);
  const TraceEvents trace = recorded(GetParam(), file().string());
  const TraceEvents read = read_chrome_trace(file());
  const ProfileSums here = sums_of(trace, attribute(trace));
  const ProfileSums there = sums_of(read, attribute(read));
  EXPECT_EQ(there.steps, kSteps);
  for (int i = 0; i < kPasses; ++i) {
    for (int k = 0; k < kWorkClasses; ++k) {
      const CellFilter filter{.passes = {static_cast<Pass>(i)},
                              .classes = {static_cast<WorkClass>(k)}};
      EXPECT_EQ(add_up(here, filter).calls, add_up(there, filter).calls)
          << pass_name(filter.passes[0]) << " " << class_name(filter.classes[0]);
    }
  }
  EXPECT_EQ(by_range(here).size(), by_range(there).size());
}

INSTANTIATE_TEST_SUITE_P(Attention, GpuProfile, ::testing::Values("naive", "cuda"));

}  // namespace
}  // namespace flashstep::report
