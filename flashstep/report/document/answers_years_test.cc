// Every year and every context that was measured has its sentences.
#include <gtest/gtest.h>

#include "flashstep/report/document/answers_test.h"
#include "flashstep/report/document/document.h"

namespace flashstep::report {
namespace {

using namespace for_tests;
using measure::Cell;

// A preset measures each context by itself; each takes `kernels` of a timer's 10 ms.
Result profile_of(const std::string& year, int context, double kernels,
                  const char* kernel = "gemm") {
  return result_of(
      "profile", str("profile_n", context, "_", year),
      {table_of({"model", "context", "pass", "timer", "range", "kernels", "kernels / timer"},
                {{"small", context, "forward", 10.0, 10.0, kernels, 10 * kernels}}),
       table_of({"model", "context", "kernel", "class", "forward", "forward calls", "backward",
                 "in all", "share"},
                {{"small", context, kernel, "matmul", 6.0, 24, 12.0, 18.0, 60.0}})});
}

Result step_of(const std::string& year, const std::string& part, int context, double forward,
               int warmup = 5) {
  return result_of(
      "step", "step_" + part + "_" + year,
      {table_of({"model", "context", "precision", "attention", "mode", "warm-up", "mean",
                 "deviation", "forward", "backward"},
                {{"small", context, "fp32", "auto", "step", warmup, 100.0, 1.0, forward, 60.0}})});
}

TEST(AnswersYears, EveryContextOfAYearIsTold) {
  const std::string text =
      answer_text("nsys_profile (a)", {profile_of("2025", 128, 10), profile_of("2025", 1024, 5)});
  EXPECT_SAYS(text, "small, context 128, ");
  EXPECT_SAYS(text, "small, context 1,024, ");
  EXPECT_SAYS(text, "shorter in 1 of 2 cases, the same within 2 % in 1 of 2 cases");
  const std::string reversed =
      answer_text("nsys_profile (a)", {profile_of("2025", 128, 10), profile_of("2025", 1024, 10)});
  EXPECT_SAYS(reversed, "the same within 2 % in all 2 cases.");
  const std::string kernels = answer_text(
      "nsys_profile (b)", {profile_of("2025", 128, 10), profile_of("2025", 1024, 10, "other")});
  EXPECT_SAYS(kernels, "`gemm` takes most");
  EXPECT_SAYS(kernels, "`other` takes most");
}

TEST(AnswersYears, ACaseThatTwoCommandsMeasureIsToldOnce) {
  const std::string text =
      answer_text("benchmarking_script (b)",
                  {step_of("2025", "n0128", 128, 30), step_of("2025", "n0256", 256, 40),
                   step_of("2025", "peers", 128, 31), step_of("2025", "warmup", 128, 32, 0)});
  EXPECT_SAYS(text, "context 128, fp32: forward 30.0 ms");
  EXPECT_SAYS(text, "context 256, fp32: forward 40.0 ms");
  EXPECT_SAYS_NOT(text, "31.0 ms");
  EXPECT_SAYS_NOT(text, "32.0 ms");
}

TEST(AnswersYears, EveryYearHasItsOwnPart) {
  const std::vector<Result> results = {step_of("2024", "n0128", 128, 30),
                                       step_of("2026", "n0512", 512, 50),
                                       step_of("quick", "x", 64, 1)};
  const std::string text = answer_text("benchmarking_script (b)", results);
  EXPECT_SAYS(text, "[2026] small, context 512, fp32: forward 50.0 ms");
  EXPECT_SAYS(text, "[2024] small, context 128, fp32: forward 30.0 ms");
  EXPECT_LT(text.find("[2026]"), text.find("[2024]"));
  EXPECT_SAYS_NOT(text, "context 64");  // quick's, which nothing falls back on
  EXPECT_EQ(text.find("[2024]"), text.rfind("[2024]")) << "2025 has no part of its own: " << text;
  const std::string page = to_html(make_document(results, {"all", {}, {}}, {}));
  EXPECT_SAYS(page, "data-year=\"2024\">\n<p class=\"soft\">Preset 2024:</p>");
  EXPECT_SAYS(page, "data-year=\"2026\">\n<p class=\"soft\">Preset 2026:</p>");
}

TEST(AnswersYears, YearsDrawTheirOwnConclusions) {
  const std::string text =
      answer_text("nsys_profile (a)", {profile_of("2025", 128, 10), profile_of("2026", 512, 5)});
  const size_t earlier = text.find("[2025]");
  ASSERT_NE(earlier, std::string::npos) << text;
  EXPECT_SAYS(text.substr(0, earlier), "the kernels' is shorter");
  EXPECT_SAYS(text.substr(earlier), "the kernels' is the same within 2 %");
}

TEST(AnswersYears, AnotherYearsResultsStandInAndSaySo) {
  EXPECT_SAYS(answer_text("nsys_profile (a)", {profile_of("2024", 128, 10)}), "[2024] small");
  EXPECT_SAYS(answer_text("nsys_profile (a)", {profile_of("quick", 64, 10)}),
              "(From the preset quick: smaller cases than the handout's.)");
}

TEST(Tally, CountsCasesWithinTwoPercentAsTheSame) {
  const auto words = [](std::vector<std::pair<double, double>> pairs) {
    Tally tally;
    for (const auto& [a, b] : pairs) tally.add(a, b);
    return tally.words("less", "same", "more");
  };
  EXPECT_EQ(words({{97, 100}}), "less");
  EXPECT_EQ(words({{98.1, 100}}), "same");
  EXPECT_EQ(words({{101.9, 100}}), "same");
  EXPECT_EQ(words({{103, 100}}), "more");
  EXPECT_EQ(words({{103, 100}, {1, 0.5}}), "more in all 2 cases");
  EXPECT_EQ(words({{103, 100}, {1, 1}, {1, 2}}),
            "less in 1 of 3 cases, same in 1 of 3 cases, more in 1 of 3 cases");
}

}  // namespace
}  // namespace flashstep::report
