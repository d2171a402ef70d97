#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/bench/attention.h"
#include "flashstep/bench/schema.h"
#include "flashstep/error.h"

namespace flashstep::tools {
namespace {

Record naive_cell(int64_t n, const std::string& outcome) {
  Record record;
  record.key = {{"dtype", "fp32"}, {"B", 8}, {"D", 16}, {"N", n}};
  record.what = describe({"fp32", 8, 0, n, n, 16, false});
  record.implementation = "naive";
  record.facts["matrix"] = 8.0 * static_cast<double>(n) * static_cast<double>(n) * 4;
  if (!outcome.empty()) record.outcome = outcome_from(outcome);
  return record;
}

TEST(BenchAttentionGrid, AccountsForWhatDoesNotFit) {
  Record fitted = naive_cell(16384, "");  // its matrix: 8 x 2^28 x 4 bytes = 8 GiB
  fitted.facts["forward peak"] = 24 * kGiB;
  fitted.facts["before backward"] = 8.5 * kGiB;
  fitted.facts["backward peak"] = 32 * kGiB;
  fitted.facts["after backward"] = 0.5 * kGiB;
  const auto sentences = grid_accounting(
      Records({fitted, naive_cell(32768, "OOM"), naive_cell(65536, "OOM")}), 139 * kGiB);
  const std::string text = join(sentences, "\n");
  for (const char* part :
       {"naive, fp32 B 8 N 32768 D 16", "8 x 32768^2 x 4 bytes = 32.00 GiB",
        "the device has 139.0 GiB", "held 3.00 such matrices", "kept 1.06 for backward",
        "backward held 4.00", "at N 32768 that is 128.0 GiB",
        "Backward gave back 8.00 of the 8.50 GiB", "512 MiB of output and gradients stay"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  EXPECT_TRUE(grid_accounting(Records({fitted}), 139 * kGiB).empty());
}

TEST(BenchAttentionGrid, MeasuresPasses) {
  BenchAttentionOptions options;
  options.preset = "grid";
  options.quick = true;
  options.filter.lengths = {256};
  options.filter.head_dims = {16, 32};
  const auto report = bench_attention(options);
  ASSERT_EQ(report.table.rows.size(), 6u);  // cpu, naive, sdpa
  const auto at = [&](const std::vector<measure::Cell>& row, const std::string& name) {
    for (size_t i = 0; i < row.size(); ++i)
      if (report.table.columns[i].name == name) return row[i];
    ADD_FAILURE() << "no column " << name;
    return measure::Cell();
  };
  for (const auto& row : report.table.rows) {
    EXPECT_GT(std::get<double>(at(row, "forward").value()), 0);
    EXPECT_GT(std::get<double>(at(row, "backward").value()), 0);
    EXPECT_GT(std::get<double>(at(row, "rate").value()), 0);
    EXPECT_EQ(at(row, "wrong"), measure::Cell(0));
    // The output and what backward needs; the formula keeps matrices of N x N.
    const double kept = std::get<double>(at(row, "before backward").value());
    const double matrices = 8.0 * 256 * 256 * 4 / (1 << 20);
    EXPECT_EQ(kept > matrices, at(row, "implementation") == measure::Cell("naive")) << kept;
    EXPECT_GT(kept, 0);
    EXPECT_EQ(at(row, "x best peer") == measure::Cell(),
              at(row, "implementation") != measure::Cell("cpu"));
  }
  EXPECT_NE(report.table.notes.back().find("Verdict: "), std::string::npos);
  options.filter.passes = {AttentionPass::kForward};
  EXPECT_THROW(bench_attention(options), UserError);
}

}  // namespace
}  // namespace flashstep::tools
