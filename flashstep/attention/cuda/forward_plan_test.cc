// Plans of the forward pass for GPUs that are not here: they fit, and take every query and key
// once.
#include "flashstep/attention/cuda/forward_plan.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "flashstep/attention/cuda/forward_turns.h"
#include "flashstep/attention/cuda/test_plans.h"

namespace flashstep::attention_cuda {
namespace {

using attention_kernel::Element;
using attention_kernel::Problem;

// Under a causal mask the last query sees the last key.
Problem make_problem_of_last(Element element, int64_t heads, int64_t n, int64_t m, int head_dim,
                             bool causal) {
  Problem problem = make_problem(element, heads, n, m, head_dim, causal);
  problem.diagonal = m - n;
  return problem;
}

template <typename Body>
void for_each_forward_plan(Body body) {
  for (const Device& device : kDevices) {
    for (Element element : {Element::kFloat32, Element::kBfloat16, Element::kFloat16}) {
      for (int head_dim = 8; head_dim <= 256; head_dim += 24) {
        for (int64_t n : {1, 63, 129, 1024, 4099, 65536}) {
          for (int64_t m : {1, 127, 2048, 16385}) {
            for (int64_t heads : {1, 6, 64}) {
              Problem problem = make_problem_of_last(element, heads, n, m, head_dim, n % 2 == 0);
              if (heads == 6) problem.window = 300;
              body(device, problem, plan_forward(problem, device));
            }
          }
        }
      }
    }
  }
}

TEST(ForwardPlan, FitsIntoSharedMemory) {
  for_each_forward_plan([](const Device& device, const Problem& problem, const ForwardPlan& plan) {
    const ForwardTile tile = forward_tile(problem.element, plan.dim, plan.shape);
    ASSERT_EQ(plan.shared_bytes, forward_shared_bytes(problem.element, plan.dim, tile));
    ASSERT_LE(plan.shared_bytes, device.shared_bytes_per_block) << to_string(plan, problem);
  });
}

TEST(ForwardPlan, TakesEveryQueryAndKeyOnce) {
  for_each_forward_plan([](const Device&, const Problem& problem, const ForwardPlan& plan) {
    const ForwardTile tile = forward_tile(problem.element, plan.dim, plan.shape);
    SCOPED_TRACE(to_string(plan, problem));
    ASSERT_GE(plan.row_tiles * tile.rows(), problem.n);
    ASSERT_LT((plan.row_tiles - 1) * tile.rows(), problem.n);
    ASSERT_GE(plan.splits * plan.keys_per_split, problem.m);
    ASSERT_LT((plan.splits - 1) * plan.keys_per_split, problem.m);
    ASSERT_EQ(plan.keys_per_split % tile.keys, 0);
    ASSERT_EQ(plan.blocks, problem.heads * plan.row_tiles * plan.splits);
    ASSERT_GE(plan.resident_blocks, 1);
    ASSERT_LE(plan.resident_blocks, plan.blocks);
    ASSERT_GE(plan.section_heads, 1);
    ASSERT_GE(plan.pair_turns, 0);
  });
}

TEST(ForwardPlan, WorkspaceHoldsThePartsOfSplitKeysAndNothingElse) {
  for_each_forward_plan([](const Device&, const Problem& problem, const ForwardPlan& plan) {
    const size_t row_bytes = (problem.head_dim + 2) * sizeof(float);  // output, reference, sum
    ASSERT_EQ(plan.workspace_bytes,
              plan.splits == 1 ? 0 : plan.splits * problem.heads * problem.n * row_bytes)
        << to_string(plan, problem);
  });
}

TEST(ForwardPlan, RegistersHoldTheTile) {
  for (Element element : {Element::kFloat32, Element::kBfloat16}) {
    for (int dim : kPaddedDims) {
      for (TileShape shape : {TileShape::kWide, TileShape::kNarrow}) {
        const ForwardTile tile = forward_tile(element, dim, shape);
        const int held = tile.q_in_registers ? tile.row_blocks * dim / 4 : 0;
        const int registers = tile.row_blocks * (dim + tile.keys) / 2 + held;
        // A thread has 255; a multiprocessor 65536.
        EXPECT_LE(registers, 200) << "dim " << dim;
        EXPECT_LE((registers + 32) * tile.threads() * tile.blocks_per_sm, 65536) << "dim " << dim;
      }
    }
  }
}

TEST(ForwardPlan, PadsTheHeadDimToTheNextInstance) {
  EXPECT_EQ(padded_dim(8), 16);
  EXPECT_EQ(padded_dim(64), 64);
  EXPECT_EQ(padded_dim(72), 96);
  EXPECT_EQ(padded_dim(104), 128);
  EXPECT_EQ(padded_dim(200), 256);
}

TEST(ForwardPlan, WarpgroupsOnHopperWhereTheyFillIt) {
  const auto plan = [](Element element, const Device& device, int64_t heads, int64_t n, int dim) {
    return plan_forward(make_problem_of_last(element, heads, n, n, dim, true), device);
  };
  const Device old = {132, 227 * kKiB, 228 * kKiB};
  const auto shape = [&](auto... of) { return plan(of...).shape; };
  EXPECT_EQ(shape(Element::kBfloat16, kH200, 64, 4096, 64), TileShape::kWarpgroups);
  EXPECT_EQ(shape(Element::kFloat16, kH200, 16, 2048, 128), TileShape::kWarpgroups);
  EXPECT_NE(shape(Element::kBfloat16, old, 64, 4096, 64), TileShape::kWarpgroups);
  EXPECT_NE(shape(Element::kFloat32, kH200, 64, 4096, 64), TileShape::kWarpgroups);
  EXPECT_NE(shape(Element::kBfloat16, kH200, 64, 4096, 32), TileShape::kWarpgroups);
  EXPECT_NE(shape(Element::kBfloat16, kH200, 1, 128, 64), TileShape::kWarpgroups);
  EXPECT_EQ(plan(Element::kBfloat16, kH200, 128, 1024, 64).resident_blocks, kH200.sm_count);
}

TEST(ForwardPlan, PairsTakeWholeTurnsOfCausalTiles) {
  const auto pair_turns = [](int64_t heads, int64_t n, bool causal, int splits = 1) {
    return plan_of(make_problem_of_last(Element::kBfloat16, heads, n, n, 128, causal), kH200,
                   TileShape::kWarpgroups, splits)
        .pair_turns;
  };
  EXPECT_EQ(pair_turns(66, 512, true), 1);     // 132 pairs
  EXPECT_EQ(pair_turns(128, 512, true), 2);    // 256: a few blocks get one pair only
  EXPECT_EQ(pair_turns(128, 2048, true), 6);   // 1024: the last 232 even out
  EXPECT_EQ(pair_turns(32, 512, true), 0);     // 64
  EXPECT_EQ(pair_turns(128, 2048, false), 0);  // all tiles are alike
  EXPECT_EQ(pair_turns(66, 512, true, 2), 0);
  EXPECT_EQ(pair_turns(33, 1024, true), 0);  // 128, and a head of long tiles

  // The first 3072 queries see no key.
  const Problem few_keys = make_problem_of_last(Element::kBfloat16, 64, 4096, 1024, 128, true);
  EXPECT_EQ(plan_of(few_keys, kH200, TileShape::kWarpgroups, 1).pair_turns, 0);
  // The last 3072 see all.
  const Problem all_seen = make_problem(Element::kBfloat16, 64, 4096, 1024, 128, true);
  EXPECT_EQ(plan_of(all_seen, kH200, TileShape::kWarpgroups, 1).pair_turns, 0);
}

// Of all steps of keys, with two more for each tile, the block that gets most has few more than its
// share.
TEST(ForwardPlan, BlocksOfWarpgroupsGetAsMuch) {
  for (const auto& [heads, n, m] :
       {std::tuple(128, 2048, 2048), std::tuple(33, 1024, 1024), std::tuple(65, 1024, 1024),
        std::tuple(64, 16384, 16384), std::tuple(32, 8192, 1024), std::tuple(48, 2500, 2500)}) {
    for (const auto& [sees_last, window] :
         {std::pair(true, attention_kernel::kNoWindow), std::pair(true, int64_t{512}),
          std::pair(false, attention_kernel::kNoWindow)}) {
      Problem problem = sees_last ? make_problem_of_last(Element::kBfloat16, heads, n, m, 128, true)
                                  : make_problem(Element::kBfloat16, heads, n, m, 128, true);
      problem.window = window;
      const Problem bounded = attention_kernel::with_bounded_mask(problem);
      const ForwardPlan plan = plan_of(problem, kH200, TileShape::kWarpgroups, 1);
      const ForwardTile tile = forward_tile(problem.element, 128, plan.shape);
      const ForwardTiles tiles{heads, static_cast<int>(plan.row_tiles), 1, true, plan.pair_turns};
      std::vector<int64_t> steps(plan.resident_blocks);
      int64_t all = 0;
      for (int block = 0; block < plan.resident_blocks; ++block) {
        ForwardTurns turns(tiles, block, static_cast<int>(plan.resident_blocks));
        for (TileOfHead at; turns.next(at);) {
          const int64_t first = at.row_tile * tile.rows();
          const int64_t last = std::min<int64_t>(n, first + tile.rows()) - 1;
          const int64_t more =
              attention_kernel::tiles_of(
                  {visible_keys(bounded, first).begin, visible_keys(bounded, last).end}, tile.keys)
                  .size() +
              2;
          steps[block] += more;
          all += more;
        }
      }
      const double most = static_cast<double>(*std::max_element(steps.begin(), steps.end()));
      EXPECT_LT(most * static_cast<double>(steps.size()) / static_cast<double>(all),
                window == attention_kernel::kNoWindow ? 1.1 : 1.15)
          << to_string(plan, problem) << ", diagonal " << problem.diagonal << ", window " << window;
    }
  }
}

TEST(ForwardPlan, SplitsTheKeysOnlyWhereBlocksAreMissing) {
  const auto splits = [](int64_t heads, int64_t n, int64_t m) {
    return plan_forward(make_problem_of_last(Element::kBfloat16, heads, n, m, 64, true), kH200)
        .splits;
  };
  EXPECT_GT(splits(1, 4096, 4096), 4);
  EXPECT_GT(splits(1, 1, 65536), 64);  // decoding
  EXPECT_EQ(splits(64, 4096, 4096), 1);
  EXPECT_EQ(splits(1, 128, 128), 1);
}

}  // namespace
}  // namespace flashstep::attention_cuda
