#include "flashstep/report/operator_work.h"

#include <gtest/gtest.h>

namespace flashstep::report {
namespace {

using Operands = std::vector<Operand>;

OperatorWork work(std::string_view name, const Operands& operands) {
  return operator_work(name, operands);
}

TEST(OperatorWork, CountsMatrixProducts) {
  const Operand a{{3, 5}, 4}, b{{5, 7}, 4}, bias{{7}, 4}, number{{}, 0};
  EXPECT_EQ(work("aten::mm", {a, b}).flops, 2 * 3 * 5 * 7);
  EXPECT_EQ(work("aten::mm", {a, b}).bytes, 4 * (15 + 35 + 21));
  EXPECT_EQ(work("aten::addmm", {bias, a, b, number, number}).flops, 2 * 3 * 5 * 7);
  EXPECT_EQ(work("aten::bmm", {{{2, 3, 5}, 2}, {{2, 5, 7}, 2}}).flops, 2 * 2 * 3 * 5 * 7);
  EXPECT_EQ(work("aten::bmm", {{{2, 3, 5}, 2}, {{2, 5, 7}, 2}}).bytes, 2 * 2 * (15 + 35 + 21));
  EXPECT_EQ(work("aten::linear", {a, b}).flops, 0) << "its aten::mm is counted";
  EXPECT_EQ(work("aten::mm", {a, {{6, 7}, 4}}).flops, 0) << "shapes that do not fit";
}

TEST(OperatorWork, CountsAttentionUnderItsMask) {
  const Operand q{{2, 3, 4, 8}, 2}, lse{{2, 3, 4}, 4};
  // 4 B H D for each of 4 * 5 / 2 pairs.
  const double forward = 4 * 2 * 3 * 8 * 10;
  EXPECT_EQ(work("flashstep::attention_forward", {q, q, q}).flops, forward);
  EXPECT_EQ(work("flashstep::attention_backward", {q, lse, q, q, q, q, lse}).flops, 2.5 * forward);
  const Operand k{{2, 3, 9, 8}, 2};
  EXPECT_EQ(work("flashstep::attention_forward", {q, k, k}).flops, 4 * 2 * 3 * 8 * 4 * 9)
      << "more keys than queries: all of them";
  EXPECT_EQ(work("flashstep::attention_forward", {{{4, 8}, 4}, {{4, 8}, 4}, {{4, 8}, 4}}).flops,
            4 * 8 * 10)
      << "without batches and heads";
}

TEST(OperatorWork, CountsTheBytesThatMustMove) {
  const Operand x{{6, 4}, 4}, row{{4}, 4}, number{{}, 0}, half{{6, 4}, 2};
  EXPECT_EQ(work("aten::mul", {x, row}).bytes, 4 * (24 + 4 + 24));
  EXPECT_EQ(work("aten::mul", {row, x}).bytes, 4 * (24 + 4 + 24)) << "broadcast";
  EXPECT_EQ(work("aten::mul_", {x, row}).bytes, 4 * (24 + 4 + 24));
  EXPECT_EQ(work("aten::add", {x, number}).bytes, 4 * 48);
  EXPECT_EQ(work("aten::copy_", {half, x, number}).bytes, 6 * 24);
  EXPECT_EQ(work("aten::zero_", {x}).bytes, 96);
  EXPECT_EQ(work("aten::sum", {x, number}).bytes, 96);
  EXPECT_EQ(work("aten::view", {x}).bytes, 0);
  EXPECT_EQ(work("aten::to", {x}).bytes, 0);
  EXPECT_EQ(work("aten::embedding", {{{100, 4}, 4}, {{3}, 8}}).bytes, 3 * 8 + 2 * 3 * 16);
  EXPECT_EQ(work("aten::_fused_adamw_", {x, x, x, x}).bytes, 7 * 96);
  EXPECT_EQ(work("aten::add", {}).bytes, 0);
}

TEST(OperatorWork, KnowsDtypesByTheProfilersNames) {
  EXPECT_EQ(profiled_element_bytes("c10::BFloat16"), 2);
  EXPECT_EQ(profiled_element_bytes("long int"), 8);
  EXPECT_EQ(profiled_element_bytes("TensorList"), 4);
  EXPECT_EQ(profiled_element_bytes("Scalar"), 0);
  EXPECT_EQ(profiled_element_bytes(""), 0);
}

}  // namespace
}  // namespace flashstep::report
