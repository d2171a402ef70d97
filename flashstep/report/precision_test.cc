#include "flashstep/report/precision.h"

#include <cmath>
#include <new>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/report/precision_sizes.h"
#include "flashstep/report/test_table.h"

namespace flashstep::report {
namespace {

// What PyTorch prints for the handout's loops.
TEST(PrecisionAccumulation, IsPyTorchs) {
  const Account account = precision_accumulation();
  std::vector<std::string> results;
  for (const auto& row : account.table.rows) results.push_back(fixed(number_of(row[1]), 4));
  ASSERT_EQ(results.size(), 6u);
  results.resize(4);
  EXPECT_EQ(results, (std::vector<std::string>{"10.0001", "9.9531", "10.0021", "10.0021"}));
  // 0.01 in float16 is 1311 x 2^-17 = 0.01000213623046875; bfloat16 sums stop where half a step of
  // theirs is more than the addend: from 4 on, 2^-6.
  EXPECT_NEAR(number_of(cell_behind(account.table, {"float16 + float16"}, "from the addend")),
              0.0213623, 1e-6);
  EXPECT_EQ(number_of(cell_behind(account.table, {"bfloat16 + bfloat16"}, "result")), 4);
}

TEST(PrecisionDtypes, OfTheToyModelOnTheCpu) {
  const Account account = precision_dtypes();
  for (const auto& [column, low] :
       {std::pair{"CPU, float16", "float16"}, std::pair{"CPU, bfloat16", "bfloat16"}}) {
    const auto dtype = [&, c = column](const char* tensor) {
      return cell_behind(account.table, {tensor}, c);
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
  const Account account = precision_dtypes();
  const bool has_gpu = !measure::list_gpus().empty();
  EXPECT_EQ(account.table.columns.size(), has_gpu ? 5u : 3u);
  if (has_gpu) {
    EXPECT_EQ(cell_behind(account.table, {"LayerNorm output"}, "CUDA, float16"),
              measure::Cell("float32"));
    EXPECT_EQ(cell_behind(account.table, {"loss: cross-entropy"}, "CUDA, float16"),
              measure::Cell("float32"));
  } else {
    EXPECT_TRUE(some_line_has(account.derivation, {"No CUDA columns: "}));
  }
}

class PrecisionNorms : public ::testing::Test {
 protected:
  static const Account& account() {
    static const Account kAccount = precision_norms({.rows = 16, .width = 512});
    return kAccount;
  }
  static double error(const char* norm, const char* step, const char* column) {
    return number_of(cell_behind(account().table, {norm, step}, column));
  }
  static bool is_finite(const char* norm, const char* step, const char* column) {
    return !cell_behind(account().table, {norm, step}, column).is_text();
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
  EXPECT_TRUE(some_line_has(account().derivation,
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
  PrecisionSizesOptions options;
  options.sizes = {"64/128/2/2", "32/64/1/2"};
  options.context_length = 32;
  options.batch_size = 2;
  options.warmup = 0;
  options.steps = 2;
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
SizeResult timed(const char* name, double bf16_seconds) {
  SizeResult result{.name = name, .parameters = 1e6};
  result.times[0] = {{0.01}, {0.01}};
  result.times[1] = {{bf16_seconds}, {bf16_seconds}};
  return result;
}

TEST(PrecisionSizes, TurnTheirVerdictWithTheNumbers) {
  const auto verdict = [](const std::vector<SizeResult>& results) {
    return precision_sizes_report(results, {}).table.notes.back();
  };
  EXPECT_EQ(verdict({timed("small", 0.005), timed("large", 0.0025)}),
            "Verdict: forward and backward of small are 2.00 times as fast in bf16 as in fp32, "
            "large 4.00 times as fast: the gain grows with the size.");
  EXPECT_EQ(verdict({timed("small", 0.02), timed("large", 0.04)}),
            "Verdict: forward and backward of small take 2.00 times as LONG in bf16 as in fp32, "
            "large 0.25 times as fast: the gain shrinks with the size.");
  EXPECT_EQ(verdict({timed("small", 0.02)}),
            "Verdict: forward and backward of small take 2.00 times as LONG in bf16 as in fp32.");
  SizeResult failed{.name = "huge", .failure = "out of memory"};
  EXPECT_EQ(verdict({timed("small", 0.01), failed}),
            "Verdict: forward and backward of small are 1.00 times as fast in bf16 as in fp32.");
  EXPECT_EQ(precision_sizes_report({failed}, {}).table.rows[0][1], measure::Cell("out of memory"));
}

TEST(PrecisionSizes, SayWhatDoesNotFit) {
  PrecisionSizesOptions options = small_sizes_options();
  options.sizes = {"65536/262144/64/64", "32/64/1/2"};  // 18 TB of weights
  const BenchReport report = precision_sizes(options);
  ASSERT_EQ(report.table.rows.size(), 2u);
  EXPECT_TRUE(report.table.rows[0][1].is_text());
  EXPECT_GT(number_of(report.table.rows[1][1]), 0);
}

c10::Error libtorch_error(const std::string& words) {
  return {c10::SourceLocation{__func__, __FILE__, __LINE__}, words};
}

// Measures as it does, and fails at the second of three sizes.
template <typename Error>
BenchReport failing_at_the_second(const Error& error) {
  PrecisionSizesOptions options = small_sizes_options();
  options.sizes = {"64/128/2/2", "32/64/1/2", "32/64/2/2"};
  int64_t sizes = 0;
  const auto measure = [&](SizeResult& result, const Workload&, const PrecisionSizesOptions&) {
    result.times = timed("", 0.005).times;
    if (++sizes == 2) throw error;
  };
  return precision_sizes_by(measure, options);
}

TEST(PrecisionSizes, AGpuThatFailsLeavesWhatIsMeasured) {
  const BenchReport report =
      failing_at_the_second(libtorch_error("CUDA error: unspecified launch failure\nand more"));
  EXPECT_EQ(report.failure, "[precision] 32/64/1/2 failed: CUDA error: unspecified launch failure");
  ASSERT_EQ(report.table.rows.size(), 2u) << "nothing is asked of a GPU that has failed";
  EXPECT_EQ(number_of(report.table.rows[0][1]), 10);
  EXPECT_EQ(report.table.rows[1][1],
            measure::Cell("failed: CUDA error: unspecified launch failure"));
  EXPECT_NE(failing_at_the_second(MachineError("the GPU is gone")).failure.find("the GPU is gone"),
            std::string::npos);
}

TEST(PrecisionSizes, WantOfMemoryIsNoFailure) {
  const BenchReport reports[] = {
      failing_at_the_second(std::bad_alloc()),
      failing_at_the_second(libtorch_error("CUDA out of memory. Tried to allocate 20 GiB")),
      failing_at_the_second(libtorch_error("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"))};
  for (const BenchReport& report : reports) {
    EXPECT_EQ(report.failure, "");
    ASSERT_EQ(report.table.rows.size(), 3u);
    EXPECT_TRUE(some_line_has({std::get<std::string>(report.table.rows[1][1].value())},
                              {"out of memory (needs about "}));
    EXPECT_EQ(number_of(report.table.rows[2][1]), 10);
  }
}

TEST(PrecisionSizes, RefuseWhatIsNone) {
  PrecisionSizesOptions options = small_sizes_options();
  options.sizes = {"32/64/1/2", "huge"};
  EXPECT_THROW(precision_sizes(options), UserError);
  options = small_sizes_options();
  options.steps = 0;
  EXPECT_THROW(precision_sizes(options), UserError);
}

}  // namespace
}  // namespace flashstep::report
