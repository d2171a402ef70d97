// Plans of runs on a CPU against what was measured of them.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/train/plan.h"

namespace flashstep {
namespace {

constexpr double kGiB = 1073741824.0;

// Runs of 6 steps in float32 on 2 cores of an AMD EPYC: the most that was resident (getrusage),
// GiB.
TEST(Plan, OfACpuIsALittleAboveWhatWasResident) {
  const struct {
    std::vector<std::string> fields;
    double none_gib, block_gib;
  } kRuns[] = {
      {{"d_model=512", "num_layers=8", "d_ff=1344", "num_heads=8", "context_length=256",
        "vocab_size=10000", "train.batch_size=16"},
       1.675,
       0.861},
      {{"d_model=256", "num_layers=4", "d_ff=704", "num_heads=8", "context_length=128",
        "vocab_size=2000", "train.batch_size=64"},
       0.796,
       0.434},
      {{"d_model=768", "num_layers=12", "d_ff=2048", "num_heads=12", "context_length=256",
        "vocab_size=10000", "train.batch_size=4"},
       1.944,
       1.784},
      {{"d_model=256", "num_layers=6", "d_ff=704", "num_heads=4", "context_length=512",
        "vocab_size=30000", "train.batch_size=8"},
       0.866,
       0.596},
  };
  for (const auto& [fields, none_gib, block_gib] : kRuns) {
    Config config;
    for (const std::string& field : fields)
      set_field(config, field.starts_with("train.") ? field : "model." + field);
    PlanDevice cpu{.is_gpu = false, .memory_bytes = 8 * kGiB};
    const Plan plan = plan_run(config, 1, cpu);
    for (const auto& [name, gib] : {std::pair{"none", none_gib}, {"block", block_gib}}) {
      SCOPED_TRACE(fields[0] + " " + name);
      const PlannedLevel& level = plan.level(name);
      EXPECT_GE(level.used_bytes / kGiB, gib);
      EXPECT_LE(level.used_bytes / kGiB, 1.18 * gib);
      EXPECT_EQ(level.fit, Fit::kYes);
      // All of the memory is not for one run.
      cpu.memory_bytes = level.used_bytes + 0.4 * kGiB;
      EXPECT_EQ(plan_run(config, 1, cpu).level(name).fit, Fit::kNo);
    }
  }
}

}  // namespace
}  // namespace flashstep
