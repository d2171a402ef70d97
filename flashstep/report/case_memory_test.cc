#include "flashstep/report/case_memory.h"

#include <gtest/gtest.h>

namespace flashstep::report {
namespace {

TEST(CaseMemory, WhatBecameOfAProcess) {
  EXPECT_EQ(process_trouble("rank 0 of 1 (process 7) was killed by SIGKILL"),
            "OOM: the kernel ended the process (SIGKILL)");
  EXPECT_EQ(process_trouble("rank 0 of 1 (process 7) ended with exit code 1: out of memory (a "
                            "smaller model needs less)"),
            "OOM: out of memory (a smaller model needs less)");
  EXPECT_EQ(process_trouble("rank 0 of 1 (process 7) ended with exit code 2: [attention] no: not "
                            "this"),
            "failed: [attention] no: not this");
  EXPECT_EQ(process_trouble("the launcher is gone"), "failed: the launcher is gone");
}

TEST(CaseMemory, OfThisMachine) {
  EXPECT_GT(free_memory_bytes("cpu"), 0);
  EXPECT_LE(free_memory_bytes("cpu"), total_memory_bytes("cpu"));
}

}  // namespace
}  // namespace flashstep::report
