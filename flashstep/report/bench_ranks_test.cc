#include "flashstep/report/bench_ranks.h"

#include <csignal>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

#include "flashstep/base/signals.h"
#include "flashstep/error.h"
#include "flashstep/report/test_rank_job.h"

namespace flashstep::report {
namespace {

TEST(BenchRanks, RankZeroHandsOverWhatItFound) {
  const std::string kTask = "{\"sizes\": [1, 2], \"note\": \"with 'quotes'\"}";
  if (const auto task = rank_task()) {
    EXPECT_EQ(*task, kTask);
    tell_progress(str("rank ", std::getenv("RANK"), " begins"));
    hand_over(str("first of ", std::getenv("RANK"), " of ", std::getenv("WORLD_SIZE")));
    hand_over("second");
    EXPECT_STREQ(std::getenv("FLASHSTEP_TEST_EXTRA"), "7");
    return;
  }
  RankJob job = job_of_test(3, kTask);
  job.variables["FLASHSTEP_TEST_EXTRA"] = "7";
  std::vector<std::string> progress;
  job.progress = [&](const std::string& line) { progress.push_back(line); };
  const RanksOutcome outcome = run_ranks(job);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.results, (std::vector<std::string>{"first of 0 of 3", "second"}));
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
  const RanksOutcome outcome = run_ranks(job_of_test(2, "x"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.failure.find("rank 1 of 2 (process "), 0u) << outcome.failure;
  EXPECT_NE(outcome.failure.find("ended with exit code 1: no memory left"), std::string::npos)
      << outcome.failure;
  for (const std::string& result : outcome.results) EXPECT_EQ(result, "before");
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
  const RanksOutcome good = run_ranks(job);
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_EQ(good.failure, "");
  EXPECT_EQ(good.results, (std::vector<std::string>{"work, done"}));
  job.task = "fail";
  const RanksOutcome bad = run_ranks(job);
  EXPECT_EQ(bad.exit_code, 3);
  EXPECT_EQ(bad.results, (std::vector<std::string>{"fail, done"}));
  EXPECT_EQ(bad.failure.find("rank 0 of 1 (process "), 0u) << bad.failure;
  EXPECT_TRUE(bad.failure.ends_with(") ended with exit code 3: no memory left")) << bad.failure;
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

}  // namespace
}  // namespace flashstep::report
