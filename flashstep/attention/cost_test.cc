#include "flashstep/attention/cost.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace flashstep {
namespace {

int64_t counted(const AttentionSize& s) {
  int64_t pairs = 0;
  for (int64_t i = 0; i < s.n; ++i) {
    for (int64_t j = 0; j < s.m; ++j)
      pairs += !s.causal || (j <= i + s.diagonal && i + s.diagonal - j < s.window);
  }
  return pairs;
}

TEST(AttentionCost, CountsTheVisiblePairsExactly) {
  for (const int64_t n : {0, 1, 2, 7, 8}) {
    for (const int64_t m : {0, 1, 3, 8, 20}) {
      for (int64_t diagonal = -12; diagonal <= 24; ++diagonal) {
        for (const int64_t window : {int64_t{1}, int64_t{5}, int64_t{30}, INT64_MAX}) {
          for (const bool causal : {false, true}) {
            AttentionSize size;
            size.n = n;
            size.m = m;
            size.causal = causal;
            size.diagonal = diagonal;
            size.window = window;
            EXPECT_EQ(visible_pairs(size), counted(size))
                << n << " " << m << " " << diagonal << " " << window << " " << causal;
          }
        }
      }
    }
  }
}

TEST(AttentionCost, FollowsTheFormulas) {
  AttentionSize size{.batches = 2, .heads = 4, .kv_heads = 2, .n = 100, .m = 50, .head_dim = 8};
  EXPECT_EQ(attention_forward_flops(size), 4.0 * 2 * 4 * 100 * 50 * 8);
  EXPECT_EQ(attention_backward_flops(size), 10.0 * 2 * 4 * 100 * 50 * 8);
  const double q = 2 * 4 * 100 * 8, k = 2 * 2 * 50 * 8, logsumexp = 2 * 4 * 100;
  EXPECT_EQ(attention_forward_bytes(size, 2), 2 * (2 * q + 2 * k) + 4 * logsumexp);
  EXPECT_EQ(attention_backward_bytes(size, 4), 4 * (4 * q + 4 * k) + 4 * logsumexp);
  EXPECT_EQ(attention_matrix_bytes(size, 4), 4.0 * 2 * 4 * 100 * 50);
}

// (2, 4, 100, 50) in 2 bytes: 80,000 bytes a matrix.
TEST(AttentionCost, CountsTheFormulasMatrices) {
  AttentionSize size{.batches = 2, .heads = 4, .kv_heads = 2, .n = 100, .m = 50, .head_dim = 8};
  NaiveAttentionMemory memory = naive_attention_memory(size, 2);
  EXPECT_EQ(memory.kept, 80000);
  EXPECT_EQ(memory.forward_peak, 160000);
  EXPECT_EQ(memory.backward_peak, 240000);
  size.causal = true;
  memory = naive_attention_memory(size, 2);
  EXPECT_EQ(memory.kept, 160000);
  EXPECT_EQ(memory.forward_peak, 240000);
  EXPECT_EQ(memory.backward_peak, 240000);
}

// B H N D and N^2 beyond 2^31.
TEST(AttentionCost, CountsLargeSizes) {
  AttentionSize size{
      .batches = 4, .heads = 16, .kv_heads = 16, .n = 131072, .m = 131072, .head_dim = 256};
  size.causal = true;
  const double pairs = 131072.0 * 131073.0 / 2;
  EXPECT_EQ(attention_forward_flops(size), 4.0 * 64 * 256 * pairs);
  EXPECT_GT(attention_forward_bytes(size, 4), 4.0 * 4 * 64 * 131072 * 256);
}

}  // namespace
}  // namespace flashstep
