#include "flashstep/profile/precision.h"

#include <cmath>

#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/bench/test_table.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"

namespace flashstep::tools {
namespace {

// What PyTorch prints for the handout's loops.
TEST(PrecisionAccumulation, IsPyTorchs) {
  const measure::Table account = precision_accumulation();
  std::vector<std::string> results;
  for (const auto& row : account.rows) results.push_back(fixed(number_of(row[1]), 4));
  ASSERT_EQ(results.size(), 6u);
  results.resize(4);
  EXPECT_EQ(results, (std::vector<std::string>{"10.0001", "9.9531", "10.0021", "10.0021"}));
  // 0.01 in float16 is 1311 x 2^-17 = 0.01000213623046875; bfloat16 sums stop where half a step of
  // theirs is more than the addend: from 4 on, 2^-6.
  EXPECT_NEAR(number_of(cell_behind(account, {"float16 + float16"}, "from the addend")), 0.0213623,
              1e-6);
  EXPECT_EQ(number_of(cell_behind(account, {"bfloat16 + bfloat16"}, "result")), 4);
}

TEST(PrecisionDtypes, OfTheToyModelOnTheCpu) {
  const measure::Table account = precision_dtypes();
  for (const auto& [column, low] :
       {std::pair{"CPU, float16", "float16"}, std::pair{"CPU, bfloat16", "bfloat16"}}) {
    const auto dtype = [&, c = column](const char* tensor) {
      return cell_behind(account, {tensor}, c);
    };
    EXPECT_EQ(dtype("parameters"), measure::Cell("float32"));
    EXPECT_EQ(dtype("fc1 output"), measure::Cell(low));
    EXPECT_EQ(dtype("logits"), measure::Cell(low));
    EXPECT_EQ(dtype("loss: mean of the logits"), measure::Cell(low));
    EXPECT_EQ(dtype("gradients"), measure::Cell("float32"));
    EXPECT_EQ(dtype("flashstep's RMSNorm output"), measure::Cell(low));
    EXPECT_EQ(dtype("flashstep's cross-entropy"), measure::Cell("float32"));
  }
}

TEST(PrecisionDtypes, SayWhyThereAreNoCudaColumns) {
  const measure::Table account = precision_dtypes();
  const bool has_gpu = !measure::list_gpus().empty();
  EXPECT_EQ(account.columns.size(), has_gpu ? 5u : 3u);
  if (has_gpu) {
    EXPECT_EQ(cell_behind(account, {"LayerNorm output"}, "CUDA, float16"),
              measure::Cell("float32"));
    EXPECT_EQ(cell_behind(account, {"loss: cross-entropy"}, "CUDA, float16"),
              measure::Cell("float32"));
  } else {
    EXPECT_TRUE(some_line_has(account.notes, {"No CUDA columns: "}));
  }
}

class PrecisionNorms : public ::testing::Test {
 protected:
  static const measure::Table& account() {
    static const measure::Table kAccount = precision_norms({.rows = 16, .width = 512});
    return kAccount;
  }
  static double error(const char* norm, const char* step, const char* column) {
    return number_of(cell_behind(account(), {norm, step}, column));
  }
  static bool is_finite(const char* norm, const char* step, const char* column) {
    return !cell_behind(account(), {norm, step}, column).is_text();
  }
};

// Half a unit of the last of 11 or 8 bits, at values below 8 root mean squares.
TEST_F(PrecisionNorms, RoundTheResultAsTheDtypeDoes) {
  for (const char* norm : {"LayerNorm", "RMSNorm"}) {
    const double half = error(norm, "result rounded", "fp16 sd 1");
    const double brain = error(norm, "result rounded", "bf16 sd 1");
    EXPECT_GT(half, 0);
    EXPECT_LE(half, std::ldexp(4, -11) * 1.1);
    EXPECT_GT(brain, 4 * half);
    EXPECT_LT(brain, 16 * half);
  }
}

// 300^2 = 90,000 is beyond float16's 65,504, not beyond bfloat16's 3e38.
TEST_F(PrecisionNorms, OverflowWhereSquaresDo) {
  for (const char* norm : {"LayerNorm", "RMSNorm"}) {
    for (const char* step :
         {"square", "mean square, summed in 16 bits", "all, summed in float32"}) {
      EXPECT_FALSE(is_finite(norm, step, "fp16 sd 300")) << norm << " " << step;
      EXPECT_TRUE(is_finite(norm, step, "bf16 sd 300")) << norm << " " << step;
      EXPECT_TRUE(is_finite(norm, step, "fp16 sd 1")) << norm << " " << step;
    }
  }
  EXPECT_TRUE(some_line_has(account().notes,
                            {"RMSNorm in fp16, standard deviation 300: square (overflow)"}));
}

// A sum of 512 terms in bfloat16 stops growing at 2^8 times its addend.
TEST_F(PrecisionNorms, SufferFromSumsInSixteenBits) {
  const char* column = "bf16 sd 1";
  EXPECT_GT(error("RMSNorm", "mean square, summed in 16 bits", column),
            3 * error("RMSNorm", "mean square, summed in float32", column));
}

TEST(PrecisionNormOptions, RefuseWhatIsNoRow) {
  EXPECT_THROW(precision_norms({.rows = 0}), UserError);
  EXPECT_THROW(precision_norms({.width = 1}), UserError);
}

PrecisionSizesOptions small_sizes_options() {
  PrecisionSizesOptions options{.warmup = 0, .steps = 2};
  options.axes.sizes = {"64/128/2/2", "32/64/1/2"};
  options.axes.contexts = {32};
  options.axes.common.batch_size = 2;
  return options;
}

TEST(PrecisionSizes, MeasureErrorAndSpeed) {
  const BenchReport report = precision_sizes(small_sizes_options());
  ASSERT_EQ(report.table.rows.size(), 2u);
  for (const char* name : {"64/128/2/2", "32/64/1/2"}) {
    for (const char* column : {"fp32 forward", "fp32 backward", "bf16 forward", "bf16 backward"})
      EXPECT_GT(number_of(cell_behind(report.table, {name}, column)), 0) << name << " " << column;
    for (const char* column : {"loss error", "logits error", "gradient error"}) {
      const double error = number_of(cell_behind(report.table, {name}, column));
      EXPECT_GT(error, 0) << column;    // bf16 does something else
      EXPECT_LT(error, 0.1) << column;  // and nearly the same
    }
  }
  EXPECT_EQ(report.runs.rows.size(), 2u * 2 * 2);
  EXPECT_EQ(cell_behind(report.runs, {"64/128/2/2", "bf16", "forward"}, "passes"),
            measure::Cell(2));
  EXPECT_TRUE(some_line_has({report.table.notes.back()}, {"Verdict: "}));
  EXPECT_EQ(report.pictures.size(), 1u);
}

// fp32 takes 10 ms a pass, bf16 what is asked for.
Record timed(const char* name, double bf16_seconds) {
  return {.key = {{"model", name}},
          .what = name,
          .samples = {{"fp32 forward", {0.01}},
                      {"fp32 backward", {0.01}},
                      {"bf16 forward", {bf16_seconds}},
                      {"bf16 backward", {bf16_seconds}}}};
}

TEST(PrecisionSizes, TurnTheirVerdictWithTheNumbers) {
  const auto verdict = [](const std::vector<Record>& records) {
    return report_of(sizes_benchmark({}), records).table.notes.back();
  };
  EXPECT_EQ(verdict({timed("small", 0.005), timed("large", 0.0025)}),
            "Verdict: forward and backward of small are 2.00 times as fast in bf16 as in fp32, "
            "large 4.00 times as fast: the gain grows with the size.");
  EXPECT_EQ(verdict({timed("small", 0.02), timed("large", 0.04)}),
            "Verdict: forward and backward of small take 2.00 times as LONG in bf16 as in fp32, "
            "large 0.25 times as fast: the gain shrinks with the size.");
  const Record failed{.what = "huge", .outcome = {Status::kOutOfMemory, ""}};
  EXPECT_EQ(verdict({timed("small", 0.01), failed}),
            "Verdict: forward and backward of small are 1.00 times as fast in bf16 as in fp32.");
}

TEST(PrecisionSizes, WantOfMemoryIsACell) {
  PrecisionSizesOptions options = small_sizes_options();
  options.axes.sizes = {"65536/262144/64/64", "32/64/1/2"};  // 18 TB of weights
  const BenchReport report = precision_sizes(options);
  EXPECT_EQ(text_at(report.table, 0, "fp32 forward"), "OOM");
  EXPECT_GT(number_at(report.table, 1, "fp32 forward"), 0);
}

TEST(PrecisionSizes, RefuseWhatIsNone) {
  PrecisionSizesOptions options = small_sizes_options();
  options.axes.sizes = {"32/64/1/2", "huge"};
  EXPECT_THROW(precision_sizes(options), UserError);
  options = small_sizes_options();
  options.steps = 0;
  EXPECT_THROW(precision_sizes(options), UserError);
}

}  // namespace
}  // namespace flashstep::tools
