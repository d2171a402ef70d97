// Plans of the backward pass for GPUs that are not here: they fit, and take every pair once.
#include "flashstep/attention/cuda/backward_plan.h"

#include <algorithm>
#include <cstdint>

#include <gtest/gtest.h>

#include "flashstep/attention/cuda/test_plans.h"

namespace flashstep::attention_cuda {
namespace {

template <typename Body>
void for_each_backward_plan(Body body) {
  for (const Device& device : kDevices)
    for (Element element : {Element::kFloat32, Element::kBfloat16, Element::kFloat16})
      for (int head_dim : {8, 24, 64, 72, 128, 136, 256})
        for (int64_t n : {1, 63, 129, 1024, 4099, 65536})
          for (int64_t m : {1, 127, 2048, 16385})
            for (int64_t heads : {1, 6, 64})
              for (bool deterministic : {false, true}) {
                Problem problem = make_problem(element, heads, n, m, head_dim, n % 2 == 0);
                problem.deterministic = deterministic;
                problem.window = heads == 6 ? 300 : attention_kernel::kNoWindow;
                body(device, problem, plan_backward(problem, device));
              }
}

TEST(BackwardPlan, FitsIntoSharedMemory) {
  for_each_backward_plan([](const Device& device, const Problem&, const BackwardPlan& plan) {
    ASSERT_LE(shared_bytes(plan.keys_tile, plan.arithmetic, plan.padded_dim),
              device.shared_bytes_per_block)
        << describe(plan);
    ASSERT_LE(shared_bytes(plan.queries_tile, plan.arithmetic, plan.padded_dim),
              device.shared_bytes_per_block)
        << describe(plan);
  });
}

void expect_covers(const BackwardGrid& grid, int64_t longest, const BackwardPlan& plan) {
  ASSERT_GE(grid.chunks * grid.chunk_steps, longest) << describe(plan);
  // No block has nothing to do but those of tiles with fewer steps.
  ASSERT_TRUE(grid.chunks == 1 || (grid.chunks - 1) * grid.chunk_steps < longest) << describe(plan);
  ASSERT_GE(grid.section_heads, 1);
  ASSERT_GE(grid.blocks, grid.heads * grid.tiles * grid.wave_chunks) << describe(plan);
  ASSERT_LT(grid.blocks, (grid.heads + grid.section_heads) * grid.tiles * grid.wave_chunks);
}

TEST(BackwardPlan, BlocksTakeEveryStep) {
  for_each_backward_plan([](const Device&, const Problem& any_problem, const BackwardPlan& plan) {
    const Problem problem = attention_kernel::with_bounded_mask(any_problem);
    int64_t longest = 0;
    for (int64_t tile = 0; tile < plan.keys.tiles; ++tile)
      longest = std::max(longest, key_tile_steps(problem, plan.keys_tile, tile));
    expect_covers(plan.keys, longest, plan);
    if (plan.one_pass) return;
    longest = 0;
    for (int64_t tile = 0; tile < plan.queries.tiles; ++tile)
      longest = std::max(longest, query_tile_steps(problem, plan.queries_tile, tile));
    expect_covers(plan.queries, longest, plan);
  });
}

TEST(BackwardPlan, WorkspaceHoldsItsParts) {
  for_each_backward_plan([](const Device&, const Problem& problem, const BackwardPlan& plan) {
    const int64_t rows = problem.batches * problem.heads * plan.padded_n;
    ASSERT_GE(plan.padded_n, problem.n);
    ASSERT_GE(plan.padded_m, problem.m);
    ASSERT_EQ(plan.padded_n % plan.keys_tile.queries + plan.padded_n % plan.queries_tile.queries,
              0);
    ASSERT_EQ(plan.padded_m % plan.keys_tile.keys, 0);
    ASSERT_EQ(plan.row_dots_at - plan.logsumexp_at, rows);
    ASSERT_EQ(plan.turns_at - plan.row_dots_at, rows);
    ASSERT_GE(plan.q_sums_at - plan.turns_at, plan.ordered ? rows / plan.keys_tile.queries : 0);
    ASSERT_LT(plan.q_sums_at - plan.turns_at, plan.ordered ? rows / plan.keys_tile.queries + 4 : 1);
    ASSERT_EQ(plan.k_sums_at - plan.q_sums_at, plan.q_slices * rows * plan.padded_dim);
    ASSERT_EQ(plan.v_sums_at - plan.k_sums_at, plan.workspace_floats - plan.v_sums_at);
    for (int64_t at :
         {plan.row_dots_at, plan.turns_at, plan.q_sums_at, plan.k_sums_at, plan.v_sums_at})
      ASSERT_EQ(at % 4, 0) << "copies and sums are of 16 bytes";
    ASSERT_EQ(plan.k_slices > 0, plan.keys.wave_chunks > 1);
  });
}

// Tiles that are skipped hold no visible pair, and the last or first that is not holds one.
TEST(BackwardPlan, SkipsHiddenTilesOnly) {
  constexpr int kQueries = 16, kKeys = 32;
  for (int64_t window : {int64_t{1}, int64_t{20}, int64_t{95}, attention_kernel::kNoWindow}) {
    for (int64_t diagonal = -150; diagonal <= 150; diagonal += 5) {
      Problem problem = make_problem(Element::kBfloat16, 1, 100, 130, 64, true);
      problem.diagonal = diagonal;
      problem.window = window;
      const Problem bounded = attention_kernel::with_bounded_mask(problem);
      const auto sees = [&](int64_t query_tile, int64_t key_tile) {
        for (int64_t i = query_tile * kQueries; i < (query_tile + 1) * kQueries; ++i)
          for (int64_t j = key_tile * kKeys; j < (key_tile + 1) * kKeys; ++j)
            if (i < problem.n && j < problem.m && j <= i + diagonal && i + diagonal - j < window)
              return true;
        return false;
      };
      for (int64_t key_tile = 0; key_tile < ceil_div(problem.m, kKeys); ++key_tile) {
        const Range of_key =
            query_tiles(bounded, key_tile * kKeys, (key_tile + 1) * kKeys, kQueries);
        for (int64_t tile = 0; tile < ceil_div(problem.n, kQueries); ++tile) {
          const Range of_query = key_tiles(bounded, tile * kQueries, (tile + 1) * kQueries, kKeys);
          const bool seen = sees(tile, key_tile);
          ASSERT_EQ(tile >= of_key.begin && tile < of_key.end, seen)
              << diagonal << " " << window << " " << key_tile << " " << tile;
          ASSERT_EQ(key_tile >= of_query.begin && key_tile < of_query.end, seen)
              << diagonal << " " << window << " " << key_tile << " " << tile;
        }
      }
    }
  }
}

int64_t longest_sum(const BackwardPlan& plan) {  // rows that an accumulator adds in a row
  return std::max(plan.keys.chunk_steps * plan.keys_tile.queries,
                  plan.queries.chunk_steps * plan.queries_tile.keys);
}

// float32 accuracy, of every shape and in both modes. Where the slices of that many chunks are too
// large, waves of chunks share them: as many at a time as there are slices, or results.
TEST(BackwardPlan, Float32SumsAreShortInLittleMemory) {
  int in_waves = 0, into_results = 0;
  for_each_backward_plan([&](const Device&, const Problem& problem, const BackwardPlan& plan) {
    if (plan.arithmetic == Arithmetic::kTf32x3) {
      ASSERT_LE(longest_sum(plan), 2048) << describe(plan);
    }
    for (const bool keys : {true, false}) {
      const BackwardGrid& grid = keys ? plan.keys : plan.queries;
      const int64_t slices = keys ? plan.k_slices : plan.q_slices;
      if (!keys && plan.one_pass) continue;
      ASSERT_GE(grid.wave_chunks, 1);
      if (grid.wave_chunks == grid.chunks) continue;  // one wave
      ++in_waves;
      ASSERT_FALSE(plan.one_pass);
      // Nothing else can be added to than float32: sums, and results of float32.
      ASSERT_EQ(plan.arithmetic, Arithmetic::kTf32x3);
      ASSERT_LT(grid.wave_chunks, grid.chunks) << describe(plan);
      ASSERT_EQ(slices, grid.wave_chunks == 1 ? 0 : grid.wave_chunks) << describe(plan);
      if (slices == 0) ++into_results;
      ASSERT_LE(slices * (keys ? 2 * plan.k_slice : plan.q_slice) * 4, int64_t{256} << 20)
          << describe(plan) << " M " << problem.m;
    }
  });
  EXPECT_GT(in_waves, 0);
  EXPECT_GT(into_results, 0);
  // What long_gpu_test.cc runs: waves into slices, and into results.
  Problem problem = make_problem(Element::kFloat32, 1, 65536, 65536, 64, true);
  problem.deterministic = true;
  const BackwardPlan one = plan_backward(problem, kH200);
  EXPECT_EQ(one.keys.chunks, 32) << describe(one);
  EXPECT_EQ(one.keys.wave_chunks, 8) << describe(one);
  EXPECT_EQ(one.k_slices, 8) << describe(one);
  problem = make_problem(Element::kFloat32, 128, 8192, 8100, 64, true);
  problem.deterministic = true;
  const BackwardPlan many = plan_backward(problem, kH200);
  EXPECT_EQ(many.keys.chunks, 4) << describe(many);
  EXPECT_EQ(many.queries.chunks, 4) << describe(many);
  EXPECT_EQ(many.k_slices + many.q_slices, 0) << describe(many);
}

TEST(BackwardPlan, Float32SumsAreShort) {
  const auto longest = [](const Problem& problem) {
    return longest_sum(plan_backward(problem, kH200));
  };
  for (const int head_dim : {16, 64, 128}) {
    for (const int64_t heads : {1, 64}) {
      for (const int64_t n : {1024, 8192, 65536}) {
        Problem problem = make_problem(Element::kFloat32, heads, n, n, head_dim, true);
        for (const bool deterministic : {true, false}) {
          problem.deterministic = deterministic;
          EXPECT_LE(longest(problem), 2048) << heads << " heads, N " << n << ", D " << head_dim;
        }
        problem.tf32 = true;  // rounds more than long sums do
        if (heads == 64 && n == 65536) {
          EXPECT_GT(longest(problem), 2048);
        }
      }
    }
  }
}

TEST(BackwardPlan, SectionsAreEven) {
  for_each_backward_plan([](const Device&, const Problem&, const BackwardPlan& plan) {
    const int64_t sections = ceil_div(plan.keys.heads, plan.keys.section_heads);
    // The last section lacks less than one head of each other one.
    ASSERT_LT(sections * plan.keys.section_heads - plan.keys.heads, sections) << describe(plan);
  });
}

TEST(BackwardPlan, OneHeadFillsTheGpu) {
  for (int64_t n : {4096, 8192}) {
    const BackwardPlan plan =
        plan_backward(make_problem(Element::kBfloat16, 1, n, n, 64, true), kH200);
    // Under a causal mask half of the chunks are there.
    EXPECT_GE(plan.keys.blocks / 2, kH200.sm_count) << describe(plan);
  }
  const BackwardPlan many =
      plan_backward(make_problem(Element::kBfloat16, 64, 16384, 16384, 64, true), kH200);
  EXPECT_EQ(many.keys.chunks, 1) << describe(many);
}

TEST(BackwardPlan, WarpgroupsTakeHeadsSideBySide) {
  const auto section = [](int64_t heads, int64_t n, bool causal, bool deterministic) {
    Problem problem = make_problem(Element::kBfloat16, heads, n, n, 128, causal);
    problem.deterministic = deterministic;
    return plan_of(problem, kH200, BackwardForm::kWarpgroupsOnePass).keys.section_heads;
  };
  EXPECT_EQ(section(128, 4096, /*causal=*/false, false), 1);
  EXPECT_EQ(section(128, 4096, /*causal=*/true, false), 4);   // of 32 tiles, for 132 places
  EXPECT_EQ(section(64, 16384, /*causal=*/true, false), 1);   // of 128 tiles
  EXPECT_EQ(section(100, 1024, /*causal=*/true, false), 17);  // six sections
  EXPECT_EQ(section(48, 1024, /*causal=*/true, false), 48);   // 384 blocks are few
  EXPECT_GT(section(128, 4096, /*causal=*/true, true), 16);   // ordered blocks wait for each other
}

// As timed (reports/attention_h200/forward_and_order).
TEST(BackwardPlan, TheFormThatIsFastest) {
  ASSERT_TRUE(kH200.warpgroups);
  const auto form = [](int64_t heads, int64_t n, int dim, bool causal, bool deterministic) {
    Problem problem = make_problem(Element::kBfloat16, heads, n, n, dim, causal);
    problem.deterministic = deterministic;
    const BackwardPlan plan = plan_backward(problem, kH200);
    return plan.warpgroups
               ? plan.one_pass ? BackwardForm::kWarpgroupsOnePass : BackwardForm::kWarpgroups
               : BackwardForm::kWarps;
  };
  using enum BackwardForm;
  constexpr bool kCausal = true, kFull = false, kRepeats = true, kNeedNot = false;
  EXPECT_EQ(form(64, 16384, 128, kFull, kRepeats), kWarpgroupsOnePass);
  EXPECT_EQ(form(64, 4096, 64, kCausal, kRepeats), kWarpgroupsOnePass);
  EXPECT_EQ(form(64, 4096, 64, kCausal, kNeedNot), kWarpgroupsOnePass);
  EXPECT_EQ(form(64, 1024, 128, kFull, kNeedNot), kWarpgroupsOnePass);
  EXPECT_EQ(form(64, 512, 64, kCausal, kRepeats), kWarpgroups);  // sums cost more than they save
  EXPECT_EQ(form(256, 768, 64, kFull, kNeedNot), kWarpgroupsOnePass);
  EXPECT_EQ(form(4, 4096, 64, kFull, kRepeats), kWarpgroups);  // all blocks of a head would wait
  EXPECT_EQ(form(1, 4096, 64, kFull, kNeedNot), kWarps);       // few tiles are cut
  EXPECT_EQ(form(1, 8192, 64, kCausal, kNeedNot), kWarps);
  EXPECT_EQ(form(1, 16384, 64, kFull, kNeedNot), kWarpgroupsOnePass);
  EXPECT_EQ(form(64, 4096, 96, kFull, kRepeats), kWarpgroups);  // dQ is divided by 64 columns
}

TEST(BackwardPlan, MemoryIsLinear) {
  // Beyond inputs and results, forward and backward at N = 131072, D = 64 stay under 1 GiB.
  for (bool deterministic : {false, true}) {
    Problem problem = make_problem(Element::kFloat32, 1, 131072, 131072, 64, true);
    problem.deterministic = deterministic;
    const BackwardPlan plan = plan_backward(problem, kH200);
    EXPECT_LT(plan.workspace_floats * 4, int64_t{1} << 30) << describe(plan);
  }
}

}  // namespace
}  // namespace flashstep::attention_cuda
