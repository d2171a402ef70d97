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
  fs::path stored(const std::string& name, Result result) {
    result.key = "0123456789abcdef";
    make_directories(folder_ / name / "results");
    write_file(result_file(folder_ / name, result.measurement, result.key), to_json(result));
    return folder_ / name;
  }

  // A report with one row of a time and its spread, and one of a mean and its deviation; of a
  // version with a further column or before it came.
  fs::path report(const std::string& name, double time, double spread, double mean,
                  const std::string& transport = "") {
    Result result = for_tests::result_of(
        "ddp", "ddp_2025",
        {for_tests::table_of({"wrapper", "ranks", "time", "p10", "p90"},
                             {{"naive", 2, time, time - spread, time + spread},
                              {"naive", 4, "OOM", Cell(), Cell()}}),
         for_tests::table_of({"model", "mean", "deviation"}, {{"small", mean, 0.1}})});
    if (!transport.empty()) {
      measure::Table& table = result.tables[0].table;
      table.columns.push_back(measure::text_column("by"));
      for (auto& row : table.rows) row.emplace_back(transport);
    }
    return stored(name, result);
  }

  // One without spreads, whose second column is in GiB.
  fs::path sizes(const std::string& name, const Columns& columns, const for_tests::CellRows& rows) {
    Result result =
        for_tests::result_of("memory", "memory_2025", {for_tests::table_of(columns, rows)});
    result.tables[0].table.columns[1].unit = "GiB";
    return stored(name, result);
  }

  // Compares them: the rows as "case: what A B noise".
  Columns compare(const fs::path& a, const fs::path& b) {
    compared_ = compare_reports(a, b).table;
    Columns rows;
    for (size_t i = 0; i < compared_.rows.size(); ++i)
      rows.push_back(say("{case}: {what} {A} {B}[ {noise}]", {nullptr, &compared_, i}));
    return rows;
  }
  double change(size_t row) const { return TableRow{nullptr, &compared_, row}.number("change"); }

  measure::Table compared_;
};

TEST_F(CompareTest, ChangesAndNoise) {
  EXPECT_EQ(compare(report("a", 100, 2, 10), report("b", 120, 2, 10.1)),
            (Columns{"naive, ranks 2: time 100.0 120.0 beyond", "small: mean 10.00 10.10 within"}));
  EXPECT_NEAR(change(0), 20, 1e-9);
  EXPECT_SAYS(compared_.notes.back(),
              "1 of 2 numbers with a spread differs by more than the noise");
}

TEST_F(CompareTest, WhatStandsBehindTheNumbersIsNoPartOfARowsName) {
  EXPECT_EQ(compare(report("a", 100, 2, 10), report("b", 120, 2, 10.1, "NCCL")).size(), 2u);
}

TEST_F(CompareTest, NumbersOfAnotherTransportAreToldApart) {
  const fs::path a = report("a", 100, 2, 10, "NCCL"), b = report("b", 120, 2, 10.1, "copies");
  EXPECT_EQ(compare(a, b),
            (Columns{"naive, ranks 2: time 100.0 120.0 beyond", "naive, ranks 2: by NCCL copies",
                     "naive, ranks 4: by NCCL copies",  // it has no times
                     "small: mean 10.00 10.10 within"}));
  EXPECT_SAYS(compared_.notes.back(), "1 of 2 numbers with a spread");
  EXPECT_EQ(compare(a, a).size(), 2u);
}

TEST_F(CompareTest, RowsOfOneNameAreComparedInTheirOrder) {
  const Columns columns = {"kind", "size", "made by"};
  const fs::path a =
      sizes("a", columns,
            {{"weights", 8, "embedding"}, {"weights", 4, "linear"}, {"weights", 2, "norm"}});
  const fs::path b = sizes("b", columns, {{"weights", 8, "embedding"}, {"weights", 5, "linear"}});
  EXPECT_EQ(compare(a, a), Columns());
  EXPECT_EQ(compare(a, b), Columns{"weights: size 4.000 5.000"});
}

TEST_F(CompareTest, AWideSpreadHidesAChange) {
  EXPECT_EQ(compare(report("a", 100, 15, 10), report("b", 120, 15, 5)),
            (Columns{"naive, ranks 2: time 100.0 120.0 within", "small: mean 10.00 5.000 beyond"}));
}

TEST_F(CompareTest, NumbersWithoutASpreadAreShownWithoutAVerdict) {
  const Columns columns = {"optimizer", "state"};
  EXPECT_EQ(compare(sizes("a", columns, {{"whole", 8.0}}), sizes("b", columns, {{"whole", 4.0}})),
            Columns{"whole: state 8.000 4.000"});
  EXPECT_NEAR(change(0), -50, 1e-9);
  EXPECT_SAYS(compared_.notes.back(), "0 of 0 numbers with a spread");
}

TEST_F(CompareTest, ColumnsOfOneNameAreComparedInTheirOrder) {
  const Columns columns = {"optimizer", "gradients", "in theory", "state", "in theory"};
  const auto with = [&](const std::string& name, double last) {
    Result result = for_tests::result_of(
        "sharding", "sharding_2025", {for_tests::table_of(columns, {{"whole", 8., 8., 4., last}})});
    for (size_t i = 1; i < columns.size(); ++i) result.tables[0].table.columns[i].unit = "GiB";
    return stored(name, result);
  };
  const fs::path a = with("a", 4);
  EXPECT_EQ(compare(a, a), Columns());
  EXPECT_EQ(compare(a, with("b", 5)), Columns{"whole: in theory 4.000 5.000"});
}

TEST_F(CompareTest, SaysWhatOneOfThemDidNotMeasure) {
  compare(report("a", 100, 2, 10), sizes("b", {"optimizer", "state"}, {{"whole", 8.0}}));
  const std::string notes = join(compared_.notes);
  EXPECT_SAYS(notes, "Only in A: ddp_2025.");
  EXPECT_SAYS(notes, "Only in B: memory_2025.");
}

TEST_F(CompareTest, NothingToCompareIsASentence) {
  const fs::path a = report("a", 100, 1, 10);
  EXPECT_THROW(compare_reports(a, folder_ / "nowhere"), UserError);
  EXPECT_THROW(compare_reports(folder_ / "nowhere", a), UserError);
}

}  // namespace
}  // namespace flashstep::tools
