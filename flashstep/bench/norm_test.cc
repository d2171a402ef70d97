#include "flashstep/bench/norm.h"

#include <cmath>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/bench/test_table.h"
#include "flashstep/measure/limits.h"

namespace flashstep::tools {
namespace {

BenchNormOptions small_norms() {
  BenchNormOptions options;
  options.rows = 300;
  options.widths = {24, 64};
  options.dtypes = {"fp32", "bf16"};
  options.implementations = {"flashstep", "naive", "libtorch", "layer_norm"};
  options.calls = 7;
  return options;
}

TEST(BenchNorm, EveryImplementationIsMeasuredAndRight) {
  const BenchReport report = bench_norm(small_norms());
  EXPECT_EQ(report.failure, "");
  const measure::Table& table = report.table;
  ASSERT_EQ(table.rows.size(), 2u * 2 * 2 * 4);  // dtypes, widths, passes, implementations
  ASSERT_EQ(report.pictures.size(), 2u * 2);
  EXPECT_TRUE(std::get<measure::Plot>(report.pictures[0].picture)
                  .footnote.starts_with("flashstep bench norm; "));
  const double limit = measure::memory_limit_bytes_per_s("cpu");
  for (size_t row = 0; row < table.rows.size(); ++row) {
    const bool half = text_at(table, row, "dtype") == "bf16";
    const bool forward = text_at(table, row, "pass") == "forward";
    EXPECT_EQ(number_at(table, row, "calls"), 9) << "three turns of three";
    EXPECT_GT(number_at(table, row, "median"), 0);
    EXPECT_LE(number_at(table, row, "p10"), number_at(table, row, "p90"));
    const double bytes = 300 * number_at(table, row, "width") * (half ? 2 : 4) * (forward ? 2 : 5);
    EXPECT_DOUBLE_EQ(number_at(table, row, "traffic"), bytes / 1e6);
    const double rate = bytes / number_at(table, row, "median") * 1e3;
    EXPECT_NEAR(number_at(table, row, "of limit"), 100 * rate / limit, 1e-6 * rate / limit);
    // Rounding is there, and no more than rounding: 2^-9 in bf16, 2^-24 in fp32.
    EXPECT_GT(number_at(table, row, "error"), half ? 1e-4 : 1e-8);
    EXPECT_LT(number_at(table, row, "error"), half ? norm_tolerance("bf16") : 1e-5);
    if (forward) continue;
    EXPECT_GT(number_at(table, row, "gradient error"), half ? 1e-4 : 1e-8);
    // LayerNorm of bf16 has sums of its own.
    if (text_at(table, row, "implementation") == "layer_norm") continue;
    EXPECT_LT(number_at(table, row, "gradient error"), half ? norm_tolerance("bf16") : 1e-5);
  }
}

TEST(BenchNorm, WhatDoesNotRunIsACell) {
  BenchNormOptions options = small_norms();
  options.dtypes = {"fp32"};
  options.widths = {16};
  options.implementations = {"naive", "compiled"};
  options.peer_command = {"/no/such/python", "ops_torch.py"};
  const BenchReport report = bench_norm(options);
  ASSERT_EQ(report.table.rows.size(), 4u);
  EXPECT_EQ(text_at(report.table, 0, "x naive"), "1.00");
  EXPECT_EQ(text_at(report.table, 1, "implementation"), "compiled");
  EXPECT_EQ(text_at(report.table, 1, "median"), "refused");
  expect_parts(join(report.table.notes), {"compiled: refused: [launch] cannot start /no/such/pyt"});
}

// A peer whose results are NaN, and that has no memory for one of the passes.
TEST(BenchNorm, APassThatFailsLeavesTheOthers) {
  BenchNormOptions options = small_norms();
  options.dtypes = {"fp32"};
  options.widths = {16};
  options.turns = 1;
  options.implementations = {"naive", "compiled"};
  options.peer_command = {"sh", "-c",
                          "echo '{}'; while read request; do case \"$request\" in"
                          " *errors*) echo '{\"y\": null, \"gradients\": 1e-7}' ;;"
                          " *forward-backward*) echo '{\"error\": \"out of memory\"}' ;;"
                          " *release*) echo '{}' ;;"
                          " *) echo '{\"seconds\": [0.5, 0.5, 0.5]}' ;; esac; done"};
  const measure::Table table = bench_norm(options).table;
  ASSERT_EQ(table.rows.size(), 4u);
  EXPECT_EQ(number_at(table, 1, "median"), 500);
  EXPECT_TRUE(std::isnan(number_at(table, 1, "error"))) << text_at(table, 1, "error");
  EXPECT_EQ(text_at(table, 3, "median"), "OOM");
}

Records turns_of_norms(double ours_ms, double naive_ms) {
  const auto run = [](const char* implementation, double ms) {
    Record record;
    record.key = {{"rows", 50'000}, {"width", 1024}, {"dtype", "fp32"}, {"pass", "forward"}};
    record.implementation = implementation;
    record.facts = {{"bytes", 2.0 * 50'000 * 1024 * 4}, {"limit seconds", 1e-3}};
    if (ms > 0) record.samples["seconds"] = {ms * 1e-3, ms * 1e-3};
    return record;
  };
  Record without_memory = run("compiled", 0);
  without_memory.outcome = outcome_from("OOM");
  return Records({run("flashstep", ours_ms), run("naive", naive_ms), without_memory});
}

TEST(BenchNorm, TableSaysWhoIsFaster) {
  const BenchReport report = report_of(norm_benchmark(small_norms()), turns_of_norms(2, 5));
  const measure::Table& table = report.table;
  EXPECT_EQ(text_at(table, 0, "x naive"), "2.50");
  EXPECT_EQ(text_at(table, 0, "gradient error"), "-");
  EXPECT_DOUBLE_EQ(number_at(table, 0, "rate"), 2 * 50'000 * 1024 * 4 / 2e-3 / 1e9);
  EXPECT_EQ(number_at(table, 0, "of limit"), 50);
  EXPECT_EQ(text_at(table, 2, "median"), "OOM");
  expect_parts(join(table.notes), {"flashstep has 2.50 times the speed of naive"});
}

}  // namespace
}  // namespace flashstep::tools
