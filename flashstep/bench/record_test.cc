#include "flashstep/bench/record.h"

#include <cmath>
#include <new>

#include <gtest/gtest.h>

#include "flashstep/bench/schema.h"
#include "flashstep/bench/test_table.h"
#include "flashstep/error.h"
#include "flashstep/measure/memory.h"

namespace flashstep::tools {
namespace {

Record record_of(int64_t context, const char* implementation, std::vector<double> seconds) {
  Record record{.key = {{"model", "xl"}, {"context", context}}, .implementation = implementation};
  record.what = "xl, context " + std::to_string(context);
  if (!seconds.empty()) record.samples["step"] = std::move(seconds);
  return record;
}

Records two_cases() {
  Records records({record_of(128, "none", {1, 1}), record_of(128, "naive", {2, 2, 4}),
                   record_of(512, "none", {4}), record_of(512, "naive", {})});
  records.all()[3].outcome = outcome_from("OOM: 3 GiB");
  return records;
}

TEST(Record, IsTheSameBehindAPipe) {
  Record record = record_of(128, "bucketed 25", {0.5, NAN});
  record.ours = false;
  record.facts = {{"by", "NCCL"}, {"error", NAN}, {"launches", 3}, {"H", measure::Cell()}};
  record.outcome = outcome_from("refused: no");
  record.fault = "wrong";
  const std::string line = to_json(record);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const Record back = record_from_json(line);
  EXPECT_EQ(to_json(back), line);
  EXPECT_EQ(back.key, record.key);
  EXPECT_EQ(back.text("by"), "NCCL");
  EXPECT_TRUE(std::isnan(back.number("error")));
  EXPECT_EQ(back.outcome, record.outcome);
}

TEST(Record, TakesWhatComesLater) {
  Record record = record_of(128, "none", {1});
  record.take(record_of(128, "none", {2, 3}));
  Record more;
  more.facts["by"] = "Gloo";
  more.outcome = outcome_from("failed: late");
  record.take(more);
  EXPECT_EQ(record.series("step"), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(record.text("by"), "Gloo");
  EXPECT_TRUE(record.outcome.failed());
}

TEST(Records, FindWithinTheCase) {
  const Records records = two_cases();
  EXPECT_EQ(records.find(records.all()[1], "none"), &records.all()[0]);
  EXPECT_EQ(records.find(records.all()[2], "nobody"), nullptr);
  EXPECT_EQ(records.fastest(records.all()[3], "step", [](const Record&) { return true; }),
            &records.all()[2]);
  EXPECT_EQ(records.of_case(records.all()[1]),
            (std::vector<const Record*>{&records.all()[0], &records.all()[1]}));
  EXPECT_TRUE(records.of_case(record_of(256, "none", {})).empty());
  EXPECT_EQ(records.cases().size(), 2u);
  EXPECT_TRUE(records.is_first_of_case(records.all()[2]));
  EXPECT_FALSE(records.is_first_of_case(records.all()[3]));
}

TEST(Schema, AColumnIsALineWithItsCell) {
  const Schema schema = {{measure::text_column("who"), implementation()},
                         {measure::integer_column("context"), fact("context")},
                         {measure::number_column("step", "ms", 1), or_word(median("step", 1e3))},
                         {measure::number_column("of none", "ms", 0), of("none", median("step"))},
                         {measure::integer_column("steps"), count("step")}};
  const measure::Table table = fill("Steps", schema, two_cases());
  EXPECT_EQ(text_at(table, 1, "step"), "2,000.0");
  EXPECT_EQ(number_at(table, 1, "steps"), 3);
  EXPECT_EQ(text_at(table, 3, "step"), "OOM");
  EXPECT_EQ(number_at(table, 3, "of none"), 4);
}

TEST(Schema, SaysWhyCellsAreEmpty) {
  Records records = two_cases();
  EXPECT_EQ(failures(records), std::vector<std::string>{"xl, context 512, naive: OOM: 3 GiB."});
  records.all()[1].outcome = outcome_from("OOM: 2 GiB");
  EXPECT_EQ(failures(records),
            std::vector<std::string>{"xl, context 128 and 1 more, naive: OOM: 2 GiB."});
}

TEST(Figures, GroupsCategoriesAndLines) {
  const Records records = two_cases();
  const auto context = [](const Record& r) {
    return r.text("model") + std::to_string(int(r.number("context")));
  };
  const measure::Plot drawn = bars(records, context, implementation_of, median_of("step", 1));
  ASSERT_EQ(drawn.series.size(), 2u);
  EXPECT_EQ(drawn.categories, (std::vector<std::string>{"xl128", "xl512"}));
  EXPECT_EQ(drawn.series[0].y, (std::vector<double>{1, 4}));
  EXPECT_TRUE(std::isnan(drawn.series[1].y[1]));
  const measure::Plot curves = lines(
      records, implementation_of, [](const Record& r) { return r.number("context"); },
      median_of("step", 1));
  ASSERT_EQ(curves.series.size(), 2u);
  EXPECT_EQ(curves.series[1].x, std::vector<double>{128}) << "what was not measured is no point";
  const measure::HeatMap map = heat_map(records, context, implementation_of, median_of("step", 1));
  EXPECT_EQ(map.values.size(), 4u);
}

TEST(Failure, OfAnException) {
  const auto sentence = [](const auto& error) { return attempt([&] { throw error; }).sentence(); };
  EXPECT_EQ(sentence(std::bad_alloc()), "OOM");
  EXPECT_EQ(sentence(MachineError("CUDA out of memory")), "OOM: CUDA out of memory");
  EXPECT_EQ(sentence(MachineError("it broke\nbadly")), "failed: it broke");
  EXPECT_EQ(sentence(UserError("a head of 10")), "refused: a head of 10");
  EXPECT_EQ(sentence(UserError("refused: too warm")), "refused: too warm");
  EXPECT_EQ(sentence(UserError("OOM: 3 GiB")), "OOM: 3 GiB");
  EXPECT_TRUE(attempt([] {}).measured());
  EXPECT_THROW(attempt([] { throw Interrupted(2, "interrupted"); }), Interrupted);
}

TEST(Failure, OfAProcessAloneInItsOwnWords) {
  const auto alone = [](const std::string& end, int exit_code) {
    return outcome_of_ranks("rank 0 of 1 (process 7) " + end, exit_code, 1, std::nullopt)
        .sentence();
  };
  EXPECT_EQ(alone("was killed by SIGKILL", 1),
            "OOM: rank 0 of 1 (process 7) was killed by SIGKILL");  // nobody says who did
  // The kernel says that it killed nobody.
  const std::string killed = "rank 0 of 1 (process 7) was killed by SIGKILL";
  if (const auto kills = measure::oom_kills()) {
    EXPECT_EQ(outcome_of_ranks(killed, 1, 1, kills).sentence(), "failed: " + killed);
  }
  EXPECT_EQ(alone("ended with exit code 1: out of memory (a smaller model needs less)", 1),
            "OOM: out of memory (a smaller model needs less)");
  EXPECT_EQ(alone("ended with exit code 2: [attention] no: not this", 2),
            "refused: [attention] no: not this");
  EXPECT_EQ(alone("was killed by SIGSEGV", 1),
            "failed: rank 0 of 1 (process 7) was killed by SIGSEGV");
}

TEST(Failure, OfRanks) {
  const std::string lost = "rank 1 of 2 (process 7) ended with exit code 1: the disk is full";
  EXPECT_EQ(outcome_of_ranks(lost, 1, 2, std::nullopt).sentence(), "failed: " + lost);
  EXPECT_EQ(outcome_of_ranks("CUDA out of memory", 1, 2, std::nullopt).word(), "OOM");
}

TEST(Failure, WordsOfAllocators) {
  EXPECT_TRUE(is_out_of_memory("DefaultCPUAllocator: can't allocate memory: you tried 5 bytes"));
  EXPECT_TRUE(is_out_of_memory("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`"));
  EXPECT_FALSE(is_out_of_memory("the disk is full"));
}

}  // namespace

}  // namespace flashstep::tools
