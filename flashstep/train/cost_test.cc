#include "flashstep/train/cost.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "flashstep/error.h"

namespace flashstep {
namespace {

// Plays a scheme: what is kept at once at most, and how many blocks run. An input has 1 byte, what
// a block keeps 100, its input included.
class Play {
 public:
  explicit Play(int64_t blocks) : blocks_(blocks) {}

  // Groups of `size`, each recomputed.
  void groups(int64_t size) {
    const int64_t count = (blocks_ + size - 1) / size;
    keep(static_cast<double>(count));
    forwards += blocks_;
    for (int64_t group = count - 1; group >= 0; --group) {
      const int64_t first = group * size, last = std::min(blocks_, first + size);
      keep(-1);  // its input is among what its first block keeps
      keep(100.0 * static_cast<double>(last - first));
      forwards += last - first;
      keep(-100.0 * static_cast<double>(last - first));
    }
  }

  void halves() { halves(blocks_); }

  void from_start() {
    keep(blocks_ > 1 ? 1 : 0);
    for (int64_t block = blocks_; block >= 1; --block) {
      forwards += block;
      keep(100);
      keep(-100);
    }
  }

  double peak = 0;
  int64_t forwards = 0;

 private:
  void keep(double bytes) {
    now_ += bytes;
    peak = std::max(peak, now_);
  }

  // The input of these blocks is kept by the caller, except for the outermost.
  void halves(int64_t count) {
    if (count == 1) {
      forwards += 1;
      keep(100);
      keep(-100);
      return;
    }
    const int64_t left = count / 2;
    forwards += count;
    keep(1);  // its own input, which is the left half's
    // The right half's input counts inside of it.
    halves(count - left);
    keep(-1);
    // Before the left half runs its input is all that is kept: inside of it again.
    halves(left);
  }

  int64_t blocks_;
  double now_ = 0;
};

BlockStack stack_of(int64_t blocks) {
  return {.blocks = blocks, .boundary_bytes = 1, .saved_bytes = 100};
}

TEST(TrainCost, CountsStateByHand) {
  const StateBytes state = state_bytes(1000);
  EXPECT_EQ(state.parameters, 4000);
  EXPECT_EQ(state.gradients, 4000);
  EXPECT_EQ(state.optimizer, 8000);
  EXPECT_EQ(state.total(), 16000);
  EXPECT_EQ(update_traffic_bytes(1000), 28000);
}

TEST(RecomputeCost, IsWhatASchemeKeepsWhenItIsPlayed) {
  for (int64_t blocks = 1; blocks <= 40; ++blocks) {
    for (int64_t size = 1; size <= blocks; ++size) {
      Play play(blocks);
      play.groups(size);
      const RecomputeCost cost = recompute_groups(stack_of(blocks), size);
      EXPECT_EQ(cost.peak_bytes, play.peak) << blocks << " in groups of " << size;
      EXPECT_EQ(cost.block_forwards, static_cast<double>(play.forwards));
    }
    Play halves(blocks), start(blocks);
    halves.halves();
    EXPECT_EQ(recompute_halves(stack_of(blocks)).peak_bytes, halves.peak) << blocks;
    EXPECT_EQ(recompute_halves(stack_of(blocks)).block_forwards,
              static_cast<double>(halves.forwards));
    start.from_start();
    EXPECT_EQ(recompute_from_start(stack_of(blocks)).peak_bytes, start.peak) << blocks;
    EXPECT_EQ(recompute_from_start(stack_of(blocks)).block_forwards,
              static_cast<double>(start.forwards));
  }
}

// 32 blocks by hand: log2 is 5, so 5 inputs and 32 * 6 passes; from the start 32 * 33 / 2.
TEST(RecomputeCost, HasTheKnownValues) {
  const BlockStack stack = stack_of(32);
  EXPECT_EQ(keep_everything(stack).peak_bytes, 3200);
  EXPECT_EQ(keep_everything(stack).block_forwards, 32);
  EXPECT_EQ(recompute_halves(stack).boundaries, 5);
  EXPECT_EQ(recompute_halves(stack).block_forwards, 192);
  EXPECT_EQ(recompute_from_start(stack).peak_bytes, 101);
  EXPECT_EQ(recompute_from_start(stack).block_forwards, 528);
}

// The handout's block, 3651.31 MiB with inputs of 80: groups of one, for sqrt(32 * 80 / 3651) < 1.
TEST(RecomputeCost, FindsTheBestGroup) {
  const BlockStack handout{.blocks = 32, .boundary_bytes = 80, .saved_bytes = 3651.31};
  EXPECT_EQ(best_group_size(handout), 1);
  EXPECT_NEAR(recompute_groups(handout, 1).peak_bytes, 31 * 80 + 3651.31, 1e-9);
  EXPECT_NEAR(recompute_groups(handout, 2).peak_bytes, 15 * 80 + 2 * 3651.31, 1e-9);
  // Where a block keeps no more than its input the root of n is best: 7 + 8. Of 6 to 8, which are
  // equal (9 + 6 before the last four blocks), the smallest is taken.
  const BlockStack equal{.blocks = 64, .boundary_bytes = 1, .saved_bytes = 1};
  EXPECT_EQ(recompute_groups(equal, 8).peak_bytes, 15);
  EXPECT_EQ(best_group_size(equal), 6);
  EXPECT_EQ(recompute_groups(equal, 6).peak_bytes, 15);
}

double choose(int64_t n, int64_t k) {
  double value = 1;
  for (int64_t i = 1; i <= k; ++i)
    value = value * static_cast<double>(n - k + i) / static_cast<double>(i);
  return std::round(value);
}

// Griewank and Walther, equation 4: l steps with c checkpoints (the first input among them) take r
// l
// - C(c + r, c + 1) passes beside the l with a graph; r is the least with C(c + r, c) >= l.
double fewest_passes(int64_t l, int64_t c) {
  int64_t r = 0;
  while (choose(c + r, c) < static_cast<double>(l)) ++r;
  return static_cast<double>(r * l) - choose(c + r, c + 1) + static_cast<double>(l);
}

TEST(RecomputeCost, FindsTheFewestPasses) {
  EXPECT_EQ(recompute_with(stack_of(10), 0).block_forwards, 55);  // from the start
  EXPECT_EQ(recompute_with(stack_of(10), 1).block_forwards, 30);
  // Each block's input kept: once forward, and again for all but the last one.
  EXPECT_EQ(recompute_with(stack_of(10), 9).block_forwards, 19);
  for (int64_t blocks = 2; blocks <= 64; ++blocks) {
    for (int64_t kept = 0; kept < 6 && kept < blocks; ++kept) {
      EXPECT_EQ(recompute_with(stack_of(blocks), kept).block_forwards,
                fewest_passes(blocks, kept + 1))
          << blocks << " blocks, " << kept << " kept";
    }
  }
}

TEST(RecomputeCost, RefusesWhatIsNoGroup) {
  EXPECT_THROW(recompute_groups(stack_of(4), 0), UserError);
  EXPECT_THROW(recompute_groups(stack_of(4), 5), UserError);
  EXPECT_THROW(recompute_with(stack_of(4), -1), UserError);
  EXPECT_THROW(recompute_with(stack_of(kMostSearchedBlocks + 1), 1), UserError);
}

TEST(StateBytes, ByWidths) {
  const StateWidths widths{.gradient = 2, .moment = 2, .copy = 2};
  EXPECT_EQ(state_bytes(10, widths).optimizer, 40);
  EXPECT_EQ(state_bytes(10, widths).copies, 20);
  EXPECT_EQ(state_bytes(10, widths).total(), 120);
  EXPECT_EQ(update_traffic_bytes(10, widths), 200);
}

}  // namespace
}  // namespace flashstep
