#include "flashstep/report/case_memory.h"

#include <gtest/gtest.h>

namespace flashstep::report {
namespace {

TEST(CaseMemory, OfThisMachine) {
  EXPECT_GT(free_memory_bytes("cpu"), 0);
  EXPECT_LE(free_memory_bytes("cpu"), total_memory_bytes("cpu"));
}

}  // namespace
}  // namespace flashstep::report
