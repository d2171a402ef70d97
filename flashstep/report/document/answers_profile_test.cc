// Results that reverse each conclusion about where the time goes turn the text.
#include <gtest/gtest.h>

#include "flashstep/report/document/answers_test.h"

namespace flashstep::report {
namespace {

using namespace for_tests;
using measure::Cell;

struct Profile {
  double kernels = 9.8;
  double copy_forward = 2, copy_backward = 1;
  double step_share = 60;
  double softmax_time = 3;
  double norm = 1;
  const char* softmax_limit = "memory";
};

std::vector<Result> profile(const Profile& p) {
  const auto kernel = [](const char* name, const char* work_class, double forward,
                         double backward) {
    return std::vector<Cell>{"small", name,     work_class,         forward,
                             24,      backward, forward + backward, 10.0};
  };
  return {result_of(
      "profile", "profile_2025",
      {table_of({"model", "pass", "timer", "range", "kernels", "kernels / timer"},
                {{"small", "forward", 10.0, 10.0, p.kernels, 98.0}}),
       table_of(
           {"model", "kernel", "class", "forward", "forward calls", "backward", "in all", "share"},
           {kernel("gemm", "matmul", 6, 12),
            kernel("copy", "copy", p.copy_forward, p.copy_backward)}),
       table_of({"model", "class", "inference share", "step share", "change"},
                {{"small", "matmul", 80.0, p.step_share, p.step_share - 80},
                 {"small", "element-wise", 20.0, 100 - p.step_share, 80 - p.step_share}}),
       table_of({"model", "work", "class", "time", "limit", "limited by", "of limit"},
                {{"small", "inference", "matmul", 9.0, 8.0, "compute", 88.0},
                 {"small", "inference", "softmax", 3.0, 2.0, p.softmax_limit, 66.0},
                 {"small", "step", "softmax", 9.0, 2.0, p.softmax_limit, 22.0}}),
       table_of({"model", "pass", "part", "time", "work", "rate"},
                {{"small", "forward", "matrix products", 2.0, 100.0, 50.0},
                 {"small", "forward", "softmax", p.softmax_time, 10.0, 3.0}}),
       table_of({"model", "range", "forward", "share"},
                {{"small", "forward", 10.0, 100.0},
                 {"small", "forward > layers > norm", p.norm, 10.0},
                 {"small", "forward > layers > attention > softmax", 2.0, 20.0}})})};
}

TEST(AnswersProfile, TimerAndTrace) {
  const auto text = [](double kernels) {
    return answer_text("nsys_profile (a)", profile({.kernels = kernels}));
  };
  EXPECT_SAYS(text(9.81), "the kernels' is the same within 2 %. ");
  EXPECT_SAYS(text(9.7), "the kernels' is shorter; where it is shorter, there are times without");
  EXPECT_SAYS(text(10.3), "the kernels' is longer; where it is longer, kernels run beside each");
  EXPECT_SAYS(text(10.3), "slows them, unless the timed and the traced steps differ.");
  EXPECT_SAYS_NOT(text(9.81), "unless");
}

TEST(AnswersProfile, TopKernels) {
  EXPECT_SAYS(answer_text("nsys_profile (b)", profile({})),
              "`gemm` takes most of the forward pass");
  EXPECT_SAYS(answer_text("nsys_profile (b)", profile({})), "it is the same one");
  EXPECT_SAYS(answer_text("nsys_profile (b)", profile({.copy_backward = 90})),
              "another one, `copy`");
  EXPECT_SAYS(answer_text("nsys_profile (c)", profile({})), "`copy` (copy) 25 %");
  EXPECT_SAYS(answer_text("nsys_profile (c)", profile({.copy_forward = 0.01})),
              "no kernel but the matrix products");
  EXPECT_SAYS(answer_text("function_call_table", profile({})), "forward `gemm` (6.00 ms)");
  EXPECT_SAYS(answer_text("function_call_table", profile({.copy_forward = 30})),
              "forward `copy` (30.0 ms)");
}

TEST(AnswersProfile, SharesOfClasses) {
  EXPECT_SAYS(answer_text("nsys_profile (d)", profile({})), "their share falls.");
  EXPECT_SAYS(answer_text("nsys_profile (d)", profile({})),
              "element-wise gains most (20.0 points)");
  EXPECT_SAYS(answer_text("nsys_profile (d)", profile({.step_share = 90})), "their share rises.");
  EXPECT_SAYS(answer_text("nsys_profile (d)", profile({.step_share = 79.9})),
              "their share stays within 2 %");
  EXPECT_SAYS(answer_text("nsys_profile (e)", profile({})),
              "15.0 times the time a FLOP; its limit is memory, of which it reaches 66 %.");
  EXPECT_SAYS(answer_text("nsys_profile (e)", profile({.softmax_limit = "compute"})),
              "its limit is compute");
  std::vector<Result> without = profile({});
  std::erase_if(without[0].tables, [](const NamedTable& named) { return named.name == "table3"; });
  EXPECT_SAYS_NOT(answer_text("nsys_profile (e)", without), "limit");
  EXPECT_SAYS(answer_text("nsys_profile (e)", profile({.softmax_time = 0.1})),
              "no more time a FLOP than they");
}

TEST(AnswersProfile, NormsAndSoftmaxInTheFlameGraph) {
  EXPECT_SAYS(answer_text("flame_graph", profile({})), "norms take 10.0 %");
  EXPECT_SAYS(answer_text("flame_graph", profile({})), "softmax is the larger part");
  EXPECT_SAYS(answer_text("flame_graph", profile({.norm = 5})), "norms are the larger part");
  EXPECT_SAYS(answer_text("flame_graph", profile({.norm = 2.01})), "both are as large");
}

}  // namespace
}  // namespace flashstep::report
