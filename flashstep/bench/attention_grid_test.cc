#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/bench/attention.h"
#include "flashstep/bench/schema.h"
#include "flashstep/bench/test_table.h"
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
  expect_parts(join(sentences, "\n"),
               {"naive, fp32 B 8 N 32768 D 16", "8 x 32768^2 x 4 bytes = 32.00 GiB",
                "the device has 139.0 GiB", "held 3.00 such matrices", "kept 1.06 for backward",
                "backward held 4.00", "at N 32768 that is 128.0 GiB",
                "Backward gave back 8.00 of the 8.50 GiB", "512 MiB of output and gradients stay"});
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
  const measure::Table& table = report.table;
  for (size_t row = 0; row < table.rows.size(); ++row) {
    for (const char* column : {"forward", "backward", "rate", "before backward"})
      EXPECT_GT(number_at(table, row, column), 0) << column;
    EXPECT_EQ(number_at(table, row, "wrong"), 0);
    // The output and what backward needs; the formula keeps matrices of N x N.
    const std::string name = text_at(table, row, "implementation");
    const double matrices = 8.0 * 256 * 256 * 4 / (1 << 20);
    EXPECT_EQ(number_at(table, row, "before backward") > matrices, name == "naive");
    EXPECT_EQ(cell_at(table, row, "x best peer") == measure::Cell(), name != "cpu");
  }
  expect_parts(report.table.notes.back(), {"Verdict: "});
  options.filter.passes = {"forward"};
  EXPECT_THROW(bench_attention(options), UserError);
}

// A process whose calls take two seconds each.
class Slow : public AttentionImplementation {
 public:
  Slow(const AttentionRound& round, int64_t& calls)
      : AttentionImplementation(round), calls_(calls) {}
  AttentionOutcome outcome(bool) override {
    const at::Tensor none = at::zeros_like(round_.inputs[0].q);
    return {none, none, none, none};
  }
  std::vector<double> turn(const std::string&, int64_t warmup, int64_t samples,
                           int64_t calls) override {
    calls_ += warmup + samples * calls;
    return std::vector<double>(static_cast<size_t>(samples), 2);
  }

 private:
  int64_t& calls_;
};

TEST(BenchAttentionGrid, ACellOfACpuHasItsSecondsInAnotherProcessToo) {
  int64_t calls = 0;
  const AttentionCandidate slow = {
      "slow", false,
      [&](const AttentionRound& round) { return std::make_unique<Slow>(round, calls); }, nullptr};
  const auto records =
      measure_grid_case({"fp32", 1, 0, 16, 16, 8, false}, at::kCPU, {slow}, /*passes=*/100);
  EXPECT_EQ(records[0].outcome.sentence(), "");
  EXPECT_EQ(records[0].series("forward").size(), 2U);  // 5 seconds for each pass, beside warm-up
  EXPECT_LE(calls, 2 * 5);
}

}  // namespace
}  // namespace flashstep::tools
