#include "flashstep/attention/cuda/forward_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include "flashstep/attention/cuda/forward_turns.h"

namespace flashstep::attention_cuda {

using attention_kernel::ceil_div;
using attention_kernel::has_window;
using attention_kernel::Range;
using attention_kernel::sees_evenly;
using attention_kernel::tiles_of;
using attention_kernel::visible_keys;
using attention_kernel::with_bounded_mask;

namespace {

// Keys and values of the heads that run side by side: well inside the L2 of an A100 (40 MB) or H100
// (50 MB), half of which is near to a multiprocessor.
constexpr int64_t kForwardSectionBytes = 16 << 20;

int section_heads(const Problem& problem) {
  const int64_t head_bytes =
      2 * problem.m * problem.head_dim * (problem.element == Element::kFloat32 ? 4 : 2);
  const int64_t kv_heads = std::max<int64_t>(1, kForwardSectionBytes / head_bytes);
  const int64_t heads = kv_heads * (problem.heads / problem.kv_heads);
  return static_cast<int>(std::min(heads, problem.batches * problem.heads));
}

// The steps of keys that the row tile from this query on sees.
Range steps_of_rows(const Problem& problem, const ForwardTile& tile, int64_t first) {
  const int64_t last = std::min(problem.n, first + tile.rows()) - 1;
  return tiles_of({visible_keys(problem, first).begin, visible_keys(problem, last).end}, tile.keys);
}

// The tiles of a pass by warpgroups. Pairs are alike where each tile sees one more step of keys
// than the one before: where the first sees a key, only the last one more than there are, and all
// from the first key on. The last turn of pairs may leave a few blocks without one. Else, and where
// a head has no other, one to two turns' worth of pairs is left to the tiles that go longest first,
// which even out.
ForwardTiles tiles_in_turns(const Problem& problem, const ForwardTile& tile, int splits,
                            int64_t blocks) {
  constexpr int64_t kPercent = 85;  // of the blocks that have a pair in the last turn, at least
  ForwardTiles tiles{static_cast<int>(problem.batches * problem.heads),
                     static_cast<int>(ceil_div(problem.n, tile.rows())), splits,
                     !sees_evenly(problem), 0};
  const bool grow_evenly = problem.diagonal > -tile.rows() &&
                           problem.n + problem.diagonal <= problem.m + tile.rows() &&
                           !has_window(problem);
  if (!problem.causal || splits > 1 || !grow_evenly) return tiles;
  const int64_t turns = tiles.pairs() / blocks, over = tiles.pairs() % blocks;
  const bool is_even = tiles.heads % 2 == 0;
  const int64_t whole = is_even && over * 100 > kPercent * blocks ? turns + 1
                        : is_even && over == 0                    ? turns
                                                                  : turns - 1;
  tiles.pair_turns = static_cast<int>(std::max<int64_t>(whole, 0));
  return tiles;
}

int resident_blocks(const ForwardTile& tile, int shared_bytes, const Device& device) {
  const int fit = (device.shared_bytes_per_sm - 1024 * tile.blocks_per_sm) / shared_bytes;
  return std::clamp(fit, 1, tile.blocks_per_sm);  // 1 KiB of each block is the driver's
}

// What a plan would cost, in microseconds of an H200 (only comparisons matter): constants fitted to
// 17000 timings of 986 shapes over heads, N, M, D, tile and splits. On another H200 the choice was
// 0.8 % slower than the best one in the mean (reports/attention_h200/forward_and_order); without
// warpgroups, in the fit, 1.3 %.
// A step's times, on a multiprocessor that is full and for a block alone, are linear in the head
// dim.
struct StepTime {
  double full, alone;
};

StepTime step_time(Element element, int dim, const ForwardTile& tile) {
  const double scores = tile.rows() * tile.keys / 8192.0;  // in units of 128 x 64
  if (element == Element::kFloat32) {
    const double full = scores * (0.2 + 0.09 * dim);
    return {full, 1.8 * full};
  }
  if (tile.warpgroups) {
    const double narrow = dim == 64 && tile.rows() == 128 ? 1.18 : 1;  // keys serve fewer queries
    const double full = narrow * scores * (0.162 + 0.0052 * dim);
    return {full, full};
  }
  if (tile.row_blocks == 1) {
    const double full = scores * (0.226 + 0.0129 * dim);
    return {full, 1.5 * full};
  }
  if (tile.warps > 4) return {scores * (0.2 + 0.0115 * dim), scores * (0.2 + 0.0115 * dim)};
  const double full = scores * (0.248 + 0.0118 * dim);
  return {full, 1.34 * full};
}

// About m / splits, in whole steps.
int64_t keys_of_part(const Problem& problem, const ForwardTile& tile, int splits) {
  return ceil_div(ceil_div(problem.m, splits), tile.keys) * tile.keys;
}

// Steps of the block that gets most of ForwardTurns, at most, each tile with `block_steps` more:
// how evenly they fall is the difference between good and bad tiles and splits.
double most_steps_of_turns(const Problem& problem, const Device& device, const ForwardTile& tile,
                           int splits, double block_steps) {
  const int64_t part = keys_of_part(problem, tile, splits) / tile.keys;
  const auto steps_of = [&](int64_t row_tile, int split) {
    const Range all = steps_of_rows(problem, tile, row_tile * tile.rows());
    const Range steps = {std::max(all.begin, split * part), std::min(all.end, (split + 1) * part)};
    return steps.size() > 0 ? static_cast<double>(steps.size()) + block_steps : 0;
  };
  const ForwardTiles tiles = tiles_in_turns(problem, tile, splits, device.sm_count);
  if (!tiles.differ) {
    const Range steps = steps_of_rows(problem, tile, (tiles.row_tiles - 1) * tile.rows());
    const int64_t parts = has_window(problem) ? tiles_of(steps, part).size() : splits;
    const int64_t blocks = int64_t{tiles.heads} * tiles.row_tiles * parts;
    return static_cast<double>(ceil_div(blocks, device.sm_count)) *
           (static_cast<double>(std::min(steps.size(), part)) + block_steps);
  }
  const RestOfPairs rest(tiles, tiles.pairs_of_turns(device.sm_count));
  std::vector<double> steps(static_cast<size_t>(device.sm_count));
  int place = 0, direction = 1;
  for (int level = 0; level < rest.levels(); ++level) {
    const double more = steps_of(tiles.row_tiles - 1 - level / splits, level % splits);
    for (int head = 0; head < rest.heads_of(level); ++head) {
      steps[place] += more;
      if (place + direction < 0 || place + direction == device.sm_count) {
        direction = -direction;
      } else {
        place += direction;
      }
    }
  }
  return tiles.pair_turns * (steps_of(0, 0) + steps_of(tiles.row_tiles - 1, 0)) +
         *std::max_element(steps.begin(), steps.end());
}

struct Candidate {
  TileShape shape;
  int splits;
  double cost;
};

// How many parts of a row tile's keys there are, in the mean, and the steps of its longest one.
struct Parts {
  double count, steps;
};

// Of blocks that share multiprocessors. Sums over row tiles are taken as if the number of keys grew
// evenly from the first to the last.
double cost_of_blocks(const Problem& problem, const Device& device, int dim,
                      const ForwardTile& tile, int splits, double first, double longest,
                      const Parts& parts) {
  constexpr double kStart = 1.17;  // microseconds
  // Steps that a block's prologue and epilogue take alone, and with others beside and behind it.
  const double block_steps = 0.68 * 64 / tile.keys, busy_steps = 1.9 * 64 / tile.keys;
  constexpr double kTail = 0.44;  // of the time of a multiprocessor's last blocks: the others wait
  const StepTime time = step_time(problem.element, dim, tile);
  const double row_tiles = static_cast<double>(ceil_div(problem.n, tile.rows()));
  const double all = static_cast<double>(problem.batches) * problem.heads * row_tiles;
  const double blocks = all * parts.count, per_sm = std::ceil(blocks / device.sm_count);
  const double block = parts.steps + block_steps;
  const double work = (all * (first + longest) / 2 + busy_steps * blocks) / device.sm_count;
  const double cost = std::max(time.alone * block, time.full * work);
  const int resident =
      resident_blocks(tile, forward_shared_bytes(problem.element, dim, tile), device);
  if (per_sm <= resident) return kStart + std::max(cost, per_sm * time.full * block);
  // Unsplit causal blocks come longest first, and the short ones fill the end.
  const double alike = first < longest ? 1 - 1.0 / splits : 1;
  return kStart + cost + kTail * alike * resident * time.full * block;
}

double cost_of(const Problem& problem, const Device& device, int dim, const ForwardTile& tile,
               int splits) {
  constexpr double kTurnsStart = 1.55, kTurnsSteps = 1.74;  // of a pass; of a tile, in turns
  constexpr double kMerge = 2.5, kMergePart = 0.063, kMergeBytesPerMicrosecond = 3.6e6;
  const auto steps_from = [&](int64_t first) {
    return static_cast<double>(steps_of_rows(problem, tile, first).size());
  };
  const double longest = std::max(1.0, steps_from((problem.n - 1) / tile.rows() * tile.rows()));
  const double first = sees_evenly(problem) ? longest : steps_from(0);
  const double steps = std::min<double>(longest, ceil_div(ceil_div(problem.m, splits), tile.keys));
  const Parts parts{splits == 1       ? 1
                    : first < longest ? std::max(1.0, (first + longest) / 2 / steps + 0.5)
                                      : std::ceil(longest / steps),
                    steps};
  const double cost =
      tile.warpgroups
          ? kTurnsStart + step_time(problem.element, dim, tile).full *
                              most_steps_of_turns(problem, device, tile, splits, kTurnsSteps)
          : cost_of_blocks(problem, device, dim, tile, splits, first, longest, parts);
  if (splits == 1) return cost;
  const double rows = static_cast<double>(problem.batches) * problem.heads * problem.n;
  const double bytes = 2 * parts.count * rows * problem.head_dim * sizeof(float);
  return cost + kMerge + kMergePart * splits + bytes / kMergeBytesPerMicrosecond;
}

Candidate choose(const Problem& problem, const Device& device, int dim) {
  constexpr int kMostSplits = 128, kMostWarpgroupSplits = 16;
  Candidate best{TileShape::kWide, 1, std::numeric_limits<double>::infinity()};
  for (TileShape shape : kTileShapes) {
    const ForwardTile tile = forward_tile(problem.element, dim, shape);
    const bool of_hopper = shape == TileShape::kWarpgroups || shape == TileShape::kNarrowWarpgroups;
    if (of_hopper != tile.warpgroups || (of_hopper && !device.warpgroups)) continue;
    if (forward_shared_bytes(problem.element, dim, tile) > device.shared_bytes_per_block) continue;
    // More blocks than four for each place they can be in only add to the merge.
    const int64_t places = static_cast<int64_t>(device.sm_count) * tile.blocks_per_sm;
    const int64_t unsplit = problem.batches * problem.heads * ceil_div(problem.n, tile.rows());
    const int64_t most = std::min({ceil_div(problem.m, tile.keys), 1 + 4 * places / unsplit,
                                   int64_t{tile.warpgroups ? kMostWarpgroupSplits : kMostSplits}});
    for (int splits = 1; splits <= most; ++splits) {
      const double cost = cost_of(problem, device, dim, tile, splits);
      if (cost < best.cost) best = {shape, splits, cost};
    }
  }
  return best;
}

}  // namespace

ForwardPlan plan_of(const Problem& any_problem, const Device& device, TileShape shape, int splits) {
  const Problem problem = with_bounded_mask(any_problem);
  ForwardPlan plan{};
  plan.dim = padded_dim(problem.head_dim);
  plan.shape = shape;
  const ForwardTile tile = forward_tile(problem.element, plan.dim, plan.shape);
  const int64_t heads = problem.batches * problem.heads;
  plan.shared_bytes = forward_shared_bytes(problem.element, plan.dim, tile);
  plan.row_tiles = ceil_div(problem.n, tile.rows());
  plan.keys_per_split = keys_of_part(problem, tile, splits);
  plan.splits = static_cast<int>(ceil_div(problem.m, plan.keys_per_split));
  plan.blocks = heads * plan.row_tiles * plan.splits;
  plan.resident_blocks = plan.blocks;
  plan.section_heads = section_heads(problem);
  if (tile.warpgroups) {
    plan.resident_blocks = std::min<int64_t>(plan.blocks, device.sm_count);
    plan.pair_turns = tiles_in_turns(problem, tile, plan.splits, plan.resident_blocks).pair_turns;
  }
  if (plan.splits > 1)
    plan.workspace_bytes = plan.splits * heads * problem.n * (problem.head_dim + 2) * sizeof(float);
  return plan;
}

ForwardPlan plan_forward(const Problem& problem, const Device& device) {
  const Candidate chosen = choose(with_bounded_mask(problem), device, padded_dim(problem.head_dim));
  return plan_of(problem, device, chosen.shape, chosen.splits);
}

std::string to_string(const ForwardPlan& plan, const Problem& problem) {
  const ForwardTile tile = forward_tile(problem.element, plan.dim, plan.shape);
  std::ostringstream text;
  text << "head dim " << plan.dim << ", tile " << tile.rows() << " queries x " << tile.keys
       << " keys, " << tile.warps << " warps, " << plan.shared_bytes << " B shared, "
       << plan.row_tiles << " row tiles, " << plan.splits << " splits of " << plan.keys_per_split
       << " keys, " << plan.blocks << " blocks, " << plan.workspace_bytes << " B workspace";
  return text.str();
}

}  // namespace flashstep::attention_cuda
