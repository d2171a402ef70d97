#include "flashstep/report/case_memory.h"

#include <gtest/gtest.h>

namespace flashstep::report {
namespace {

TEST(CaseMemory, OfThisMachine) {
  EXPECT_GT(free_memory_bytes("cpu"), 0);
  EXPECT_LE(free_memory_bytes("cpu"), total_memory_bytes("cpu"));
}

// Blocks that are recomputed keep their inputs; the fewer they are, the more is kept.
TEST(CaseMemory, OfRecomputedBlocks) {
  Workload w = resolved_workload({.model = {.size = "small"}});
  const auto about = [&](const char* recompute, int64_t blocks) {
    w.recompute = recompute;
    w.recompute_blocks = blocks;
    return needed_bytes(w).about;
  };
  const double none = about("none", 0), all = about("block", 0);
  EXPECT_LT(all, none);
  EXPECT_EQ(about("block", 12), all);
  EXPECT_EQ(about("block", 100), all);
  EXPECT_GT(about("block", 4), about("block", 8));
  EXPECT_LT(about("block", 4), none);
}

}  // namespace
}  // namespace flashstep::report
