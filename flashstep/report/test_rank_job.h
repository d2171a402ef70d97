// For tests of ranks that are launched: they are the test's own program, which runs this test only.
#pragma once

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/report/bench_ranks.h"

namespace flashstep::report {

inline RankJob job_of_test(int ranks = 2, const std::string& task = "") {
  const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
  RankJob job;
  job.ranks = ranks;
  job.task = task;
  job.arguments = {str("--gtest_filter=", info->test_suite_name(), ".", info->name()),
                   "--gtest_brief=1"};
  const char* launcher = std::getenv("FLASHSTEP_PROGRAM");
  job.launcher = launcher ? launcher : "flashstep";
  return job;
}

}  // namespace flashstep::report
