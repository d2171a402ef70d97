// Two reports beside each other: what differs by more than the noise is said to.
#include <gtest/gtest.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/report/combine.h"
#include "flashstep/report/report.h"
#include "flashstep/report/stored_results_test.h"

namespace flashstep::tools {
namespace {

namespace fs = std::filesystem;
using measure::Cell;

class CompareTest : public for_tests::FolderTest {
 protected:
  // A report with one row of a time and its spread, and one of a mean and its deviation; of a
  // version with a further column or before it came.
  fs::path report(const std::string& name, double time, double spread, double mean,
                  double deviation, const std::string& transport = "") {
    Result result = for_tests::result_of(
        "ddp", "ddp_2025",
        {for_tests::table_of({"wrapper", "ranks", "time", "p10", "p90"},
                             {{"naive", 2, time, time - spread, time + spread},
                              {"naive", 4, "OOM", Cell(), Cell()}}),
         for_tests::table_of({"model", "mean", "deviation"}, {{"small", mean, deviation}})});
    if (!transport.empty()) {
      measure::Table& table = result.tables[0].table;
      table.columns.push_back(measure::text_column("by"));
      for (auto& row : table.rows) row.emplace_back(transport);
    }
    result.key = "0123456789abcdef";
    make_directories(folder_ / name / "results");
    write_file(result_file(folder_ / name, result.measurement, result.key), to_json(result));
    return folder_ / name;
  }
};

TEST_F(CompareTest, ChangesAndNoise) {
  const BenchReport compared =
      compare_reports(report("a", 100, 2, 10, 0.1), report("b", 120, 2, 10.1, 0.1));
  ASSERT_EQ(compared.table.rows.size(), 2u);
  const Result none;
  const auto view = [&](size_t row) { return TableRow{&none, &compared.table, row}; };
  EXPECT_EQ(view(0).text("case"), "naive, ranks 2");
  EXPECT_EQ(view(0).number("A"), 100);
  EXPECT_EQ(view(0).number("B"), 120);
  EXPECT_NEAR(view(0).number("change"), 20, 1e-9);
  EXPECT_EQ(view(0).text("noise"), "beyond");
  EXPECT_EQ(view(1).text("what"), "mean");
  EXPECT_EQ(view(1).text("noise"), "within");
  EXPECT_SAYS(compared.table.notes.back(),
              "1 of 2 numbers with a spread differs by more than the noise");
}

TEST_F(CompareTest, WhatStandsBehindTheNumbersIsNoPartOfARowsName) {
  const BenchReport compared =
      compare_reports(report("a", 100, 2, 10, 0.1), report("b", 120, 2, 10.1, 0.1, "NCCL"));
  EXPECT_EQ(compared.table.rows.size(), 2u);
}

TEST_F(CompareTest, NumbersOfAnotherTransportAreToldApart) {
  const BenchReport compared = compare_reports(report("a", 100, 2, 10, 0.1, "NCCL"),
                                               report("b", 120, 2, 10.1, 0.1, "copies"));
  const Result none;
  const auto view = [&](size_t row) { return TableRow{&none, &compared.table, row}; };
  ASSERT_EQ(compared.table.rows.size(), 4u);  // the row without times has a transport, too
  EXPECT_EQ(view(1).text("what"), "by");
  EXPECT_EQ(view(1).text("A"), "NCCL");
  EXPECT_EQ(view(1).text("B"), "copies");
  EXPECT_EQ(view(1).text("noise"), "");
  EXPECT_EQ(view(2).text("case"), "naive, ranks 4");
  EXPECT_SAYS(compared.table.notes.back(), "1 of 2 numbers with a spread");
  EXPECT_EQ(compare_reports(folder_ / "a", folder_ / "a").table.rows.size(), 2u);
}

TEST_F(CompareTest, RowsOfOneNameAreComparedInTheirOrder) {
  for (const auto& [name, change] : {std::pair("a", 0.0), std::pair("b", 1.0)}) {
    Result result = for_tests::result_of(
        "memory", "memory_2025",
        {for_tests::table_of({"kind", "size", "made by"}, {{"weights", 8, "embedding"},
                                                           {"weights", 4 + change, "linear"},
                                                           {"weights", 2, "norm"}})});
    if (change > 0) result.tables[0].table.rows.pop_back();
    result.tables[0].table.columns[1].unit = "GiB";
    result.key = "0123456789abcdef";
    make_directories(folder_ / name / "results");
    write_file(result_file(folder_ / name, result.measurement, result.key), to_json(result));
  }
  EXPECT_TRUE(compare_reports(folder_ / "a", folder_ / "a").table.rows.empty());
  const BenchReport compared = compare_reports(folder_ / "a", folder_ / "b");
  const Result none;
  const auto view = [&](size_t row) { return TableRow{&none, &compared.table, row}; };
  ASSERT_EQ(compared.table.rows.size(), 1u);
  EXPECT_EQ(view(0).number("A"), 4);
  EXPECT_EQ(view(0).number("B"), 5);
}

TEST_F(CompareTest, AWideSpreadHidesAChange) {
  const BenchReport compared =
      compare_reports(report("a", 100, 15, 10, 0.1), report("b", 120, 15, 5, 0.1));
  const Result none;
  const auto view = [&](size_t row) { return TableRow{&none, &compared.table, row}; };
  EXPECT_EQ(view(0).text("noise"), "within");
  EXPECT_EQ(view(1).text("noise"), "beyond");
}

TEST_F(CompareTest, NumbersWithoutASpreadAreShownWithoutAVerdict) {
  for (const auto& [name, state] : {std::pair("a", 8.0), std::pair("b", 4.0)}) {
    Result result =
        for_tests::result_of("sharding", "sharding_2025",
                             {for_tests::table_of({"optimizer", "state"}, {{"whole", state}})});
    result.tables[0].table.columns[1].unit = "GiB";
    result.key = "0123456789abcdef";
    make_directories(folder_ / name / "results");
    write_file(result_file(folder_ / name, result.measurement, result.key), to_json(result));
  }
  const BenchReport compared = compare_reports(folder_ / "a", folder_ / "b");
  const Result none;
  const auto view = [&](size_t row) { return TableRow{&none, &compared.table, row}; };
  ASSERT_EQ(compared.table.rows.size(), 1u);
  EXPECT_NEAR(view(0).number("change"), -50, 1e-9);
  EXPECT_EQ(view(0).text("noise"), "");
  EXPECT_SAYS(compared.table.notes.back(), "0 of 0 numbers with a spread");
}

TEST_F(CompareTest, NothingToCompareIsASentence) {
  const fs::path a = report("a", 100, 1, 10, 1);
  EXPECT_THROW(compare_reports(a, folder_ / "nowhere"), UserError);
  EXPECT_THROW(compare_reports(folder_ / "nowhere", a), UserError);
}

}  // namespace
}  // namespace flashstep::tools
