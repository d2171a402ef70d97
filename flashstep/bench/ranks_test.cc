#include "flashstep/bench/ranks.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/benchmark.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

// Ranks that are launched are the test's own program, which runs this test only.
RankJob job_of_test(int ranks = 2, const std::string& task = "") {
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

TEST(BenchRanks, RankZeroHandsOverWhatItFound) {
  const std::string kTask = "{\"sizes\": [1, 2], \"note\": \"with 'quotes'\"}";
  if (const auto task = rank_task()) {
    EXPECT_EQ(*task, kTask);
    tell_progress(str("rank ", std::getenv("RANK"), " begins"));
    hand_over(str("first of ", std::getenv("RANK"), " of ", std::getenv("WORLD_SIZE")));
    hand_over("second");
    return;
  }
  RankJob job = job_of_test(3, kTask);
  std::vector<std::string> progress, results;
  job.progress = [&](const std::string& line) { progress.push_back(line); };
  job.result = [&](const std::string& result) { results.push_back(result); };
  EXPECT_EQ(run_ranks(job), Outcome());
  EXPECT_EQ(results, (std::vector<std::string>{"first of 0 of 3", "second"}));
  EXPECT_EQ(progress, (std::vector<std::string>{"rank 0 begins"}));
}

TEST(BenchRanks, AFailureKeepsWhatWasThere) {
  if (rank_task()) {
    hand_over("before");
    if (std::string(std::getenv("RANK")) == "1") {
      std::fprintf(stderr, "flashstep: no memory left\n");
      std::_Exit(1);
    }
    std::this_thread::sleep_for(std::chrono::seconds(60));
  }
  RankJob job = job_of_test(2, "x");
  job.result = [](const std::string& result) { EXPECT_EQ(result, "before"); };
  const Outcome outcome = run_ranks(job);
  EXPECT_TRUE(outcome.failed());
  EXPECT_TRUE(outcome.why.starts_with("rank 1 of 2 (process ")) << outcome.why;
  EXPECT_TRUE(contains(outcome.why, "ended with exit code 1: no memory left")) << outcome.why;
}

TEST(BenchRanks, OneRankNeedsNoLauncher) {
  if (const auto task = rank_task()) {
    EXPECT_STREQ(std::getenv("WORLD_SIZE"), "1");
    EXPECT_NE(std::getenv("MASTER_PORT"), nullptr);
    hand_over(*task + ", done");
    if (*task == "work") return;
    std::fprintf(stderr, "flashstep: no memory left\n");
    std::_Exit(3);
  }
  RankJob job = job_of_test(1, "work");
  job.launcher = "/no/such/program";
  std::string handed_over;
  job.result = [&](const std::string& result) { handed_over = result; };
  EXPECT_EQ(run_ranks(job), Outcome());
  EXPECT_EQ(handed_over, "work, done");
  job.task = "fail";
  EXPECT_EQ(run_ranks(job), (Outcome{Status::kFailed, "no memory left"}));
  EXPECT_EQ(handed_over, "fail, done");
}

TEST(BenchRanks, ASignalStopsTheRanks) {
  if (rank_task()) {
    hand_over("here");
    std::this_thread::sleep_for(std::chrono::seconds(60));
    return;
  }
  const SignalGuard signals;
  RankJob job = job_of_test(2, "x");
  std::raise(SIGTERM);
  const auto start = std::chrono::steady_clock::now();
  try {
    run_ranks(job);
    ADD_FAILURE() << "expected Interrupted";
  } catch (const Interrupted& interrupted) {
    EXPECT_EQ(interrupted.signal(), SIGTERM);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(BenchRanks, MistakesAreSentences) {
  EXPECT_THROW(run_ranks(job_of_test(0, "x")), UserError);
  RankJob job = job_of_test(2, "x");
  job.launcher = "/no/such/program";
  EXPECT_THROW(run_ranks(job), MachineError);
  EXPECT_FALSE(rank_task());
}

using Json = nlohmann::json;

// Measures the units of a task; what happens to the one that fails is `fail`'s.
template <typename Fail>
void be_rank(const std::string& task, const Fail& fail) {
  for (const std::string unit : Json::parse(task)) {
    hand_over(Json({{"begins", unit}}).dump());
    Record record{.implementation = unit};
    record.samples["total"] = {0.5};
    hand_over_record(record);
    if (unit == "large") fail();
    record.samples["total"] = {0.25};
    record.facts["by"] = "Gloo";
    hand_over_record(record);
  }
}

[[noreturn]] void end_with(int code, const char* sentence) {
  // No group here lets the ranks begin together: rank 0, which has said what begins, fails first.
  if (std::string(std::getenv("RANK")) != "0") std::this_thread::sleep_for(std::chrono::minutes(1));
  std::fprintf(stderr, "flashstep: %s\n", sentence);  // whoever is first is quoted
  std::_Exit(code);
}

std::vector<Record> measure(const std::vector<std::string>& implementations) {
  std::vector<Record> blanks;
  for (const std::string& implementation : implementations)
    blanks.push_back({.key = {{"model", "xl"}}, .what = "xl", .implementation = implementation});
  return measure_on_ranks(
      job_of_test(), [](const std::vector<std::string>& units) { return Json(units).dump(); },
      blanks);
}

TEST(RankJobs, OneThatFailsIsLeftOutAndTheOthersAreMeasured) {
  if (const auto task = rank_task())
    return be_rank(*task, [] { end_with(1, "CUDA out of memory. Tried to allocate 20 GiB"); });
  const auto records = measure({"small", "large", "medium"});
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[1].outcome.word(), "OOM");
  EXPECT_FALSE(records[1].has("total")) << "what was measured of it counts for nothing";
  for (const size_t i : {0, 2}) {
    EXPECT_TRUE(records[i].outcome.measured());
    EXPECT_EQ(records[i].series("total"), (std::vector<double>{0.5, 0.25}));
    EXPECT_EQ(records[i].text("by"), "Gloo");
  }
}

TEST(RankJobs, AllFailWhereNoneHadBegun) {
  if (rank_task()) std::raise(SIGSEGV);
  const auto records = measure({"small", "large"});
  ASSERT_EQ(records.size(), 2u);
  for (const Record& record : records) {
    EXPECT_TRUE(record.outcome.failed());
    EXPECT_TRUE(contains(record.outcome.why, "SIGSEGV")) << record.outcome.why;
  }
  EXPECT_EQ(failure_of("bench x", Records(records)).find("[bench x] xl, small failed: rank "), 0u);
}

TEST(RankJobs, AMistakeOfTheCallersStaysOne) {
  if (const auto task = rank_task())
    return be_rank(*task, [] { end_with(2, "[bench] expected something else"); });
  const auto records = measure({"large"});
  EXPECT_EQ(records[0].outcome.sentence().find("refused: [bench] expected something else"), 0u);
}

}  // namespace
}  // namespace flashstep::tools
