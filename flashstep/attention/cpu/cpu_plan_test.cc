#include <gtest/gtest.h>

#include "flashstep/attention/cpu/plan.h"

namespace flashstep::attention_cpu {
namespace {

Problem shape(int64_t heads, int64_t kv_heads, int64_t n, int64_t m, int dim) {
  Problem problem{};
  problem.element = attention_kernel::Element::kBfloat16;
  problem.batches = 1;
  problem.heads = heads;
  problem.kv_heads = kv_heads;
  problem.n = n;
  problem.m = m;
  problem.head_dim = dim;
  return problem;
}

template <typename Body>
void for_each_problem(const Body& body) {
  for (const int64_t l2_kib : {256, 512, 1024, 2048}) {
    for (const bool bf16_dot : {false, true}) {
      for (const int64_t heads : {1, 2, 16, 96}) {
        for (const int64_t n : {1, 7, 96, 513, 4096, 131072}) {
          for (const int64_t m : {1, 33, 512, 4097, 131072}) {
            for (const int dim : {8, 64, 128, 256}) {
              body(shape(heads, heads % 2 ? 1 : heads / 2, n, m, dim),
                   Machine{l2_kib * 1024, bf16_dot});
            }
          }
        }
      }
    }
  }
}

TEST(CpuAttentionPlan, ForwardCoversTheProblemWithinTheCache) {
  for_each_problem([](const Problem& problem, const Machine& machine) {
    const auto plan = plan_forward(problem, machine);
    ASSERT_EQ(plan.key_tile % kMaxPanel, 0) << to_string(plan);
    ASSERT_LE(plan.key_tile, kMaxTile);
    ASSERT_EQ(plan.query_tile % kMaxBlockRows, 0);
    ASSERT_GE(plan.key_tile * plan.key_tiles, problem.m);
    ASSERT_GE(plan.query_tile * plan.query_tiles, problem.n);
    ASSERT_LT(plan.key_tile * (plan.key_tiles - 1), problem.m);
    ASSERT_LT(plan.query_tile * (plan.query_tiles - 1), problem.n);
    ASSERT_LE(plan.tile_words * 4,
              std::max<int64_t>(machine.l2_bytes / 4, 2 * kMaxPanel * kMaxTile * 4));
    ASSERT_LE(plan.scratch_words * 4, (512 << 10) + (plan.shared ? 0 : plan.tile_words * 4))
        << to_string(plan);
    ASSERT_TRUE(!plan.shared || plan.heads_per_wave == 1 ||
                plan.heads_per_wave * plan.head_words * 4 <= 16 << 20);
  });
}

TEST(CpuAttentionPlan, BackwardCoversTheProblemWithinTheCache) {
  for_each_problem([](const Problem& problem, const Machine& machine) {
    const auto plan = plan_backward(problem, machine);
    ASSERT_GE(plan.key_tile * plan.key_tiles, problem.m) << to_string(plan);
    ASSERT_GE(plan.query_tile * plan.query_tiles, problem.n);
    ASSERT_GE(plan.chunks * plan.tiles_per_chunk, plan.key_tiles);
    ASSERT_LT((plan.chunks - 1) * plan.tiles_per_chunk, plan.key_tiles);
    ASSERT_GE(plan.grad_q_floats, problem.heads / problem.kv_heads * problem.n * problem.head_dim);
    ASSERT_LE(plan.scratch_words * 4, 3 << 20) << to_string(plan);
    const int64_t partial = plan.heads_per_wave * plan.chunks * plan.grad_q_floats * 4;
    ASSERT_TRUE(plan.heads_per_wave * plan.chunks < 64 || partial <= 32 << 20) << to_string(plan);
    ASSERT_TRUE(plan.chunks == 1 || plan.chunks * plan.grad_q_floats * 4 <= 512 << 20);
  });
}

TEST(CpuAttentionPlan, OneShortHeadIsCutForManyThreads) {
  const Machine machine = {1 << 20, true};
  EXPECT_GE(plan_forward(shape(1, 1, 512, 512, 64), machine).query_tiles, 16);
  EXPECT_GE(plan_backward(shape(1, 1, 512, 512, 64), machine).chunks, 8);
}

}  // namespace
}  // namespace flashstep::attention_cpu
