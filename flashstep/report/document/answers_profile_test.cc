// Results that reverse each conclusion about where the time goes turn the text.
#include <algorithm>

#include <gtest/gtest.h>

#include "flashstep/report/document/answers_test.h"

namespace flashstep::report {
namespace {

using namespace for_tests;
using measure::Cell;

struct Profile {
  double kernels = 9.8;    // milliseconds of the forward pass, in inference and in a step
  double attention = 0.1;  // of them, in our kernel of attention; 0: the table leaves it out
  double attention_class = 0.1;
  double copy_forward = 2, copy_backward = 1;
  double step_share = 60;
  double idle = 0, step_idle = 0;  // beside the classes, whose shares are then of what is left
  double softmax_time = 3, scale_time = 5;
  double norm = 1;
  const char* softmax_limit = "memory";
  double optimizer = 3;  // milliseconds
  bool listed_optimizer = true;
};

std::vector<Result> profile(const Profile& p) {
  const auto kernel = [](const char* name, const char* work_class, double forward, double backward,
                         const Cell& optimizer = Cell()) {
    return std::vector<Cell>{"small",  name,      work_class,         forward, 24,
                             backward, optimizer, forward + backward, 10.0};
  };
  const auto shares = [&](const char* work_class, double inference, double step) {
    inference *= 1 - p.idle / 100;
    step *= 1 - p.step_idle / 100;
    return std::vector<Cell>{"small", work_class, inference, step, step - inference};
  };
  return {result_of(
      "profile", "profile_2025",
      {table_of({"model", "pass", "timer", "range", "kernels", "kernels / timer"},
                {{"small", "inference, forward", 10.0, 10.0, p.kernels, 98.0},
                 {"small", "forward", 10.0, 10.0, p.kernels, 98.0},
                 {"small", "optimizer", 4.0, 4.0, p.optimizer, 75.0}}),
       table_of({"model", "kernel", "class", "forward", "forward calls", "backward", "optimizer",
                 "in all", "share"},
                {kernel("gemm", "matmul", 6, 12),
                 kernel("copy", "copy", p.copy_forward, p.copy_backward,
                        p.listed_optimizer ? Cell(2.5) : Cell()),
                 kernel("backward_keys_kernel", "attention", 0, 4),
                 kernel("forward_kernel", "attention", p.attention, 0)}),
       table_of({"model", "class", "inference share", "step share", "change"},
                {shares("matmul", 80, p.step_share),
                 shares("element-wise", 20, 100 - p.step_share),
                 {"small", "idle", p.idle, p.step_idle, p.step_idle - p.idle}}),
       table_of({"model", "work", "class", "time", "limit", "limited by", "of limit"},
                {{"small", "inference", "matmul", 9.0, 8.0, "compute", 88.0},
                 {"small", "inference", "attention", p.attention_class, Cell(), Cell(), Cell()},
                 {"small", "inference", "softmax", 0.2, 0.1, p.softmax_limit, 66.0},
                 {"small", "step", "softmax", 9.0, 2.0, p.softmax_limit, 22.0}}),
       table_of({"model", "pass", "part", "time", "work", "rate"},
                {{"small", "forward", "matrix products", 2.0, 100.0, 50.0},
                 {"small", "forward", "softmax", p.softmax_time, 10.0, 3.0},
                 {"small", "forward", "scale and mask", p.scale_time, Cell(), Cell()}}),
       table_of({"model", "range", "forward", "share"},
                {{"small", "forward", 10.0, 100.0},
                 {"small", "forward > layers > norm", p.norm, 10.0},
                 {"small", "forward > layers > attention > softmax", 2.0, 20.0}})})};
}

// The same without the table that has this column.
std::vector<Result> without(std::vector<Result> results, const std::string& column) {
  std::erase_if(results[0].tables, [&](const NamedTable& named) {
    const auto& columns = named.table.columns;
    return std::any_of(columns.begin(), columns.end(),
                       [&](const measure::Column& c) { return c.name == column; });
  });
  return results;
}

TEST(AnswersProfile, TimerAndTrace) {
  const auto text = [](double kernels) {
    return answer_text("nsys_profile (a)", profile({.kernels = kernels}));
  };
  EXPECT_SAYS(text(9.81), "the kernels' is the same within 2 % in all 2 cases. ");
  EXPECT_SAYS(text(9.7), "shorter in all 2 cases; where it is shorter, there are times without a");
  EXPECT_SAYS(text(10.3), "longer in all 2 cases; where it is longer, kernels run beside each");
  EXPECT_SAYS(text(10.3), "(then the column busy is shorter than the column kernels) or the");
  for (const double kernels : {9.7, 9.81, 10.3}) EXPECT_SAYS_NOT(text(kernels), "unless");
}

TEST(AnswersProfile, TopKernels) {
  EXPECT_SAYS(answer_text("nsys_profile (b)", profile({})),
              "`gemm` takes most of the forward pass");
  EXPECT_SAYS(answer_text("nsys_profile (b)", profile({})), "it is the same one");
  EXPECT_SAYS(answer_text("nsys_profile (b)", profile({.copy_backward = 90})),
              "another one, `copy`");
  EXPECT_SAYS(answer_text("function_call_table", profile({})), "forward `gemm` (6.00 ms)");
  EXPECT_SAYS(answer_text("function_call_table", profile({.copy_forward = 30})),
              "forward `copy` (30.0 ms)");
}

TEST(AnswersProfile, KernelsBesideMatrixProducts) {
  const auto text = [](const Profile& p) { return answer_text("nsys_profile (c)", profile(p)); };
  EXPECT_SAYS(text({.kernels = 8.1}), "products `copy` (copy) 25 % of the time in kernels of the");
  EXPECT_SAYS(text({.copy_forward = 0.01}), "no kernel of the table but the matrix products takes");
  // Our kernel of attention is no matrix product.
  const std::string attention = text({.attention = 0.4, .copy_forward = 0.01});
  EXPECT_SAYS(attention, "beside the matrix products `forward_kernel` (attention) 4 % of the time");
  EXPECT_SAYS_NOT(attention, "no kernel");
  EXPECT_SAYS_NOT(attention, "gemm");
}

TEST(AnswersProfile, KernelsAreAPartOfTheWholePass) {
  const auto text = [](const Profile& p) { return answer_text("nsys_profile (c)", profile(p)); };
  // Of the three that the table lists copy is 25 %.
  EXPECT_SAYS(text({.kernels = 16}), "`copy` (copy) 12 % of the time in kernels of the forward");
  EXPECT_SAYS(text({.kernels = 16}), "; kernels that the table leaves out take 49 % together.");
  EXPECT_SAYS(text({.kernels = 160}), "no kernel of the table but the matrix products takes 3 %");
  EXPECT_SAYS_NOT(text({.kernels = 8.1}), "leaves out");
  // The kernel may be too small for the table and still be notable.
  EXPECT_SAYS(text({.kernels = 10, .attention = 0, .attention_class = 0.5}),
              "; whole classes that the table leaves out, in inference: attention 5 %.");
  EXPECT_SAYS_NOT(text({.kernels = 10, .attention = 0.5, .attention_class = 0.5}), "whole classes");
  EXPECT_SAYS_NOT(text({.kernels = 10, .attention = 0, .attention_class = 0.2}), "whole classes");
  EXPECT_SAYS(answer_text("nsys_profile (c)", without(profile({}), "timer")),
              "`copy` (copy) 25 % of the time in the largest kernels of the forward pass.");
}

TEST(AnswersProfile, APassWithoutALargeKernel) {
  const auto text = [](const Profile& p) { return answer_text("function_call_table", profile(p)); };
  EXPECT_SAYS(text({}), "optimizer `copy` (2.50 ms).");
  EXPECT_SAYS_NOT(text({}), "no kernel");
  const Profile missing{.optimizer = 1.5, .listed_optimizer = false};
  EXPECT_SAYS(text(missing),
              "; no kernel of the optimizer is among the largest of the step (its "
              "kernels take 1.50 ms together).");
  // A forward pass alone has no optimizer.
  EXPECT_SAYS_NOT(text({.optimizer = 0, .listed_optimizer = false}), "optimizer");
}

TEST(AnswersProfile, SharesOfClasses) {
  const auto text = [](const Profile& p) { return answer_text("nsys_profile (d)", profile(p)); };
  EXPECT_SAYS(text({}), "their share of the time in kernels falls.");
  EXPECT_SAYS(text({}), "element-wise gains most (20.0 points)");
  EXPECT_SAYS_NOT(text({}), "idle");
  EXPECT_SAYS(text({.step_share = 90}), "in kernels rises.");
  EXPECT_SAYS(text({.step_share = 79.9}), "in kernels stays within 2 %");
}

TEST(AnswersProfile, SharesOfClassesLeaveIdleTimeOut) {
  const auto text = [](const Profile& p) { return answer_text("nsys_profile (d)", profile(p)); };
  // Of the whole time matrix products fall from 72 % to 45 %.
  const std::string rises = text({.step_share = 90, .idle = 10, .step_idle = 50});
  EXPECT_SAYS(rises, "take 80.0 % of the time in kernels of inference and 90.0 % of that of a");
  EXPECT_SAYS(rises, "with the GPU idle for 10.0 % / 50.0 % of the whole time. From");
  EXPECT_SAYS(rises, "in kernels rises.");
  EXPECT_SAYS_NOT(rises, "gains");
  // And here they rise from 40 % to 60 %.
  const std::string falls = text({.step_share = 60, .idle = 50, .step_idle = 0});
  EXPECT_SAYS(falls, "50.0 % / 0.0 % of the whole time; element-wise gains most (20.0 points)");
  EXPECT_SAYS(falls, "in kernels falls.");
}

TEST(AnswersProfile, SoftmaxBesideMatrixProducts) {
  EXPECT_SAYS(answer_text("nsys_profile (e)", profile({})),
              "15.0 times the time a FLOP; its limit is memory, of which it reaches 66 %.");
  EXPECT_SAYS(answer_text("nsys_profile (e)", profile({.softmax_limit = "compute"})),
              "its limit is compute");
  EXPECT_SAYS_NOT(answer_text("nsys_profile (e)", without(profile({}), "limit")), "limit");
  EXPECT_SAYS(answer_text("nsys_profile (e)", profile({.softmax_time = 0.1})),
              "no more time a FLOP than they");
}

TEST(AnswersProfile, SoftmaxBesideScaleAndMask) {
  const auto text = [](const Profile& p) { return answer_text("nsys_profile (e)", profile(p)); };
  EXPECT_SAYS(text({}), "softmax alone (its kernels, without scale and mask) takes 1.50 of the");
  EXPECT_SAYS(
      text({}),
      "Scale and mask take more than either: 50 % of attention's forward pass, softmax 30 %");
  EXPECT_SAYS(text({.softmax_time = 7, .scale_time = 1}),
              "Scale and mask take 10 % of attention's forward pass, softmax 70 %.");
  EXPECT_SAYS_NOT(text({.scale_time = 0}), "Scale and mask");
}

TEST(AnswersProfile, NormsAndSoftmaxInTheFlameGraph) {
  EXPECT_SAYS(answer_text("flame_graph", profile({})), "norms take 10.0 %");
  EXPECT_SAYS(answer_text("flame_graph", profile({})), "that range is the larger part");
  EXPECT_SAYS(answer_text("flame_graph", profile({.norm = 5})), "norms are the larger part");
  EXPECT_SAYS(answer_text("flame_graph", profile({.norm = 2.01})), "both are as large");
}

TEST(AnswersProfile, TheFlameGraphSaysWhichSoftmaxItMeans) {
  const auto text = [](const std::vector<Result>& results) {
    return answer_text("flame_graph", results);
  };
  // The range is larger than the norms; the kernels alone are not.
  const std::string both = text(profile({.softmax_time = 0.5, .scale_time = 1.8}));
  EXPECT_SAYS(both,
              "the range softmax, which holds the mask too, 20.0 %: that range is the larger");
  EXPECT_SAYS(both, "; the kernels of softmax alone take 5.0 %, scale and mask 18.0 %.");
  EXPECT_SAYS(text(profile({.softmax_time = 4})), "the kernels of softmax alone take 40.0 %");
  EXPECT_SAYS_NOT(text(without(profile({}), "part")), "alone");
  std::vector<Result> fused = without(without(profile({}), "part"), "range");
  fused[0].tables.push_back({"ranges", table_of({"model", "range", "forward", "share"},
                                                {{"small", "forward", 10.0, 100.0},
                                                 {"small", "forward > norm", 1.0, 10.0}})});
  EXPECT_SAYS(text(fused),
              "norms take 10.0 % of the forward pass; softmax has no range of its own.");
}

}  // namespace
}  // namespace flashstep::report
