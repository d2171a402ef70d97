#include "flashstep/report/rank_jobs.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "flashstep/report/benchmark.h"
#include "flashstep/report/test_rank_job.h"

namespace flashstep::report {
namespace {

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
  RankWork work;
  work.job = job_of_test();
  work.task_of = [](const std::vector<std::string>& units) { return Json(units).dump(); };
  std::vector<Record> blanks;
  for (const std::string& implementation : implementations)
    blanks.push_back({.key = {{"model", "xl"}}, .what = "xl", .implementation = implementation});
  return measure_on_ranks(work, blanks);
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
  if (rank_task()) {
    std::raise(SIGSEGV);
  }
  const auto records = measure({"small", "large"});
  ASSERT_EQ(records.size(), 2u);
  for (const Record& record : records) {
    EXPECT_TRUE(record.outcome.failed());
    EXPECT_NE(record.outcome.why.find("SIGSEGV"), std::string::npos) << record.outcome.why;
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
}  // namespace flashstep::report
