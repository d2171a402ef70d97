#include "flashstep/train/cost.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "flashstep/error.h"

namespace flashstep {
namespace {

RecomputeCost cost_of(const BlockStack& stack, int64_t boundaries, int64_t saved_blocks,
                      int64_t forwards) {
  const auto kept = static_cast<double>(boundaries), full = static_cast<double>(saved_blocks);
  return {.boundaries = kept,
          .saved_blocks = full,
          .block_forwards = static_cast<double>(forwards),
          .peak_bytes = kept * stack.boundary_bytes + full * stack.saved_bytes};
}

// Forwards of `blocks` blocks whose halves are recomputed: all once, then each half within itself.
int64_t forwards_in_halves(int64_t blocks) {
  if (blocks == 1) return 1;
  const int64_t left = blocks / 2;
  return blocks + forwards_in_halves(left) + forwards_in_halves(blocks - left);
}

int64_t levels(int64_t blocks) {  // ceil(log2)
  int64_t count = 0;
  while ((int64_t{1} << count) < blocks) ++count;
  return count;
}

}  // namespace

StateBytes state_bytes(double parameters, const StateWidths& widths) {
  return {.parameters = widths.parameter * parameters,
          .copies = widths.copy * parameters,
          .gradients = widths.gradient * parameters,
          .optimizer = 2 * widths.moment * parameters};
}

double update_traffic_bytes(double parameters, const StateWidths& widths) {
  return (2 * widths.parameter + widths.gradient + 4 * widths.moment + widths.copy) * parameters;
}

RecomputeCost keep_everything(const BlockStack& stack) {
  return cost_of(stack, 0, stack.blocks, stack.blocks);
}

RecomputeCost recompute_groups(const BlockStack& stack, int64_t size) {
  require(size >= 1 && size <= stack.blocks, "[recompute] expected groups of 1 to ", stack.blocks,
          " blocks, got ", size);
  const int64_t groups = (stack.blocks + size - 1) / size;
  const int64_t last = stack.blocks - (groups - 1) * size;
  // A group's own input is among what its first block keeps.
  const RecomputeCost at_last = cost_of(stack, groups - 1, last, 2 * stack.blocks);
  if (groups == 1) return at_last;
  const RecomputeCost before = cost_of(stack, groups - 2, size, 2 * stack.blocks);
  return before.peak_bytes > at_last.peak_bytes ? before : at_last;
}

int64_t best_group_size(const BlockStack& stack) {
  int64_t best = 1;
  for (int64_t size = 2; size <= stack.blocks; ++size) {
    const double peak = recompute_groups(stack, size).peak_bytes;
    if (peak < recompute_groups(stack, best).peak_bytes) best = size;
  }
  return best;
}

RecomputeCost recompute_halves(const BlockStack& stack) {
  return cost_of(stack, levels(stack.blocks), 1, forwards_in_halves(stack.blocks));
}

RecomputeCost recompute_from_start(const BlockStack& stack) {
  return cost_of(stack, stack.blocks > 1 ? 1 : 0, 1, stack.blocks * (stack.blocks + 1) / 2);
}

RecomputeCost recompute_with(const BlockStack& stack, int64_t kept) {
  const int64_t n = stack.blocks;
  require(n >= 1 && n <= kMostSearchedBlocks, "[recompute] expected 1 to ", kMostSearchedBlocks,
          " blocks to find the fewest forwards, got ", n);
  require(kept >= 0, "[recompute] expected 0 boundaries or more, got ", kept);
  const int64_t most = std::min(kept, n - 1);
  // fewest[i]: of i blocks, with so many boundaries as the outer loop has come to.
  std::vector<int64_t> fewest(n + 1);
  for (int64_t i = 0; i <= n; ++i) fewest[i] = i * (i + 1) / 2;
  for (int64_t boundaries = 1; boundaries <= most; ++boundaries) {
    const std::vector<int64_t> one_less = fewest;
    for (int64_t i = 2; i <= n; ++i) {
      fewest[i] = std::numeric_limits<int64_t>::max();
      for (int64_t m = 1; m < i; ++m)
        fewest[i] = std::min(fewest[i], m + one_less[i - m] + fewest[m]);
    }
  }
  // The first input is a boundary too, once the blocks behind it are under way.
  return cost_of(stack, n > 1 ? 1 + most : 0, 1, fewest[n]);
}

}  // namespace flashstep
