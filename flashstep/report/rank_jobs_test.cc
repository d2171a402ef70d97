#include "flashstep/report/rank_jobs.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "flashstep/error.h"
#include "flashstep/report/test_rank_job.h"

namespace flashstep::report {
namespace {

using Json = nlohmann::json;

std::string as_task(const std::vector<std::string>& contestants) {
  return Json(contestants).dump();
}

// Measures the contestants of a task; what happens to the one that fails is `fail`'s.
template <typename Fail>
void be_rank(const std::string& task, const Fail& fail) {
  for (const std::string contestant : Json::parse(task)) {
    hand_over(Json({{"begins", contestant}}).dump());
    if (contestant == "large") fail();
    hand_over(Json({{"contestant", contestant}}).dump());
  }
}

[[noreturn]] void end_with(int code, const char* sentence) {
  // No group here lets the ranks begin together: rank 0, which has said what begins, fails first.
  if (std::string(std::getenv("RANK")) != "0") std::this_thread::sleep_for(std::chrono::minutes(1));
  std::fprintf(stderr, "flashstep: %s\n", sentence);  // whoever is first is quoted
  std::_Exit(code);
}

TEST(RankJobs, OneThatFailsIsLeftOutAndTheOthersAreMeasured) {
  if (const auto task = rank_task())
    return be_rank(*task, [] { end_with(1, "CUDA out of memory. Tried to allocate 20 GiB"); });
  const JobResults results = run_contestants(job_of_test(), {"small", "large", "medium"}, as_task);
  ASSERT_EQ(results.failures.size(), 1u);
  EXPECT_EQ(results.failures[0].contestant, "large");
  EXPECT_EQ(results.failures[0].sentence.find("OOM: "), 0u) << results.failures[0].sentence;
  std::vector<std::string> measured;
  for (const std::string& line : results.handed_over) {
    const Json json = Json::parse(line);
    if (json.contains("contestant")) measured.push_back(json["contestant"]);
  }
  EXPECT_EQ(measured, (std::vector<std::string>{"small", "medium"}));
}

TEST(RankJobs, AllFailWhereNoneHadBegun) {
  if (rank_task()) {
    std::raise(SIGSEGV);
  }
  const JobResults results = run_contestants(job_of_test(), {"small", "large"}, as_task);
  ASSERT_EQ(results.failures.size(), 2u);
  EXPECT_EQ(results.failures[1].contestant, "large");
  BenchReport report;
  note_end(results, ParallelCase(), report);
  EXPECT_NE(report.failure.find("small failed: rank "), std::string::npos) << report.failure;
  EXPECT_NE(report.failure.find("SIGSEGV"), std::string::npos) << report.failure;
}

TEST(RankJobs, TheFirstFailureIsTheMachinesUnlessMemoryWasTooSmall) {
  BenchReport report;
  note_end({{}, {{"a", "OOM: too large"}}, 0}, ParallelCase(), report);
  EXPECT_EQ(report.failure, "");
  note_end({{}, {{"a", "OOM: too large"}, {"b", "failed: 1"}, {"c", "failed: 2"}}, 0},
           ParallelCase(), report);
  note_end({{}, {{"d", "failed: 3"}}, SIGINT}, ParallelCase(), report);
  EXPECT_EQ(report.failure, "[bench] " + describe(ParallelCase()) + ", b failed: 1");
  EXPECT_EQ(report.signal, SIGINT);
}

// Whoever else kills a rank has not shown that memory was too small.
TEST(RankJobs, AKilledRankWantedMemoryIfTheKernelSaysSo) {
  const std::string killed = "rank 1 of 2 (process 7) was killed by SIGKILL";
  EXPECT_EQ(describe_failure(killed, true), "OOM: " + killed);
  EXPECT_EQ(describe_failure(killed, false), "failed: " + killed);
  EXPECT_EQ(describe_failure("CUDA out of memory", false), "OOM: CUDA out of memory");
  EXPECT_EQ(describe_failure("rank 1 ended with exit code 1", true),
            "failed: rank 1 ended with exit code 1");
}

TEST(RankJobs, AMistakeOfTheCallersStaysOne) {
  if (const auto task = rank_task())
    return be_rank(*task, [] { end_with(2, "[bench] expected something else"); });
  EXPECT_THROW(run_contestants(job_of_test(), {"large"}, as_task), UserError);
}

TEST(RankJobs, FailuresFindTheirRuns) {
  struct Run {
    std::string contestant, trouble;
  };
  std::vector<Run> runs = runs_of<Run>({"a", "b"});
  put_failures({{"b", "OOM: too large"}}, runs);
  EXPECT_EQ(runs[0].trouble, "");
  EXPECT_EQ(runs[1].trouble, "OOM: too large");
}

}  // namespace
}  // namespace flashstep::report
