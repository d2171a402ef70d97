#include "flashstep/attention/cuda/forward_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

namespace flashstep::attention_cuda {

using attention_kernel::ceil_div;

namespace {

// Keys and values of the heads that run side by side: well inside the L2 of an A100 (40 MB) or H100
// (50 MB), half of which is near to a multiprocessor.
constexpr int64_t kForwardSectionBytes = 16 << 20;

int section_heads(const Problem& problem, int64_t section_bytes) {
  const int64_t head_bytes =
      2 * problem.m * problem.head_dim * (problem.element == Element::kFloat32 ? 4 : 2);
  const int64_t kv_heads = std::max<int64_t>(1, section_bytes / head_bytes);
  const int64_t heads = kv_heads * (problem.heads / problem.kv_heads);
  return static_cast<int>(std::min(heads, problem.batches * problem.heads));
}

// How warpgroups get their tiles. Blocks that stay and take them in turns begin to load the next
// tile while they end one. Causal tiles of many steps differ by so much that the GPU's own order
// of blocks, the next to whoever is free, is worth more; parts of split keys are alike.
constexpr int kTurnsSteps = 12;  // of a mean tile, at most

bool takes_turns(const Problem& problem, const ForwardTile& tile, int splits) {
  return tile.warpgroups &&
         (!problem.causal || splits > 1 || ceil_div(problem.m, 2 * tile.keys) <= kTurnsSteps);
}

// Of heads whose tiles go round in turns. Two turns of opposite direction give all blocks as much,
// so where there are several sections, each had best have a whole number of such pairs.
int section_heads_of_turns(const Problem& problem, const Device& device, int64_t row_tiles) {
  constexpr int64_t kBytes = 32 << 20;
  const int most = section_heads(problem, kBytes);
  if (most == problem.batches * problem.heads) return most;
  const int64_t pair = 2 * device.sm_count;
  const auto left_over = [&](int heads) { return heads * row_tiles % pair; };
  int best = most;
  for (int heads = most; heads > most / 2; --heads) {
    if (heads * row_tiles >= pair && left_over(heads) < left_over(best)) best = heads;
  }
  return best;
}

int resident_blocks(const ForwardTile& tile, int shared_bytes, const Device& device) {
  const int fit = (device.shared_bytes_per_sm - 1024 * tile.blocks_per_sm) / shared_bytes;
  return std::clamp(fit, 1, tile.blocks_per_sm);  // 1 KiB of each block is the driver's
}

// What a plan would cost, in microseconds of an H200 (only comparisons matter): constants fitted to
// 1700 timings over N, D, tile and splits, where in the mean its choice was 5 % slower than the
// best one. Then to 2300 of D 64 with warpgroups: 1.5 % slower with these, 3 % without
// (reports/attention_h200/warpgroups); other D were not timed again.
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
    const double narrow = dim == 64 && tile.rows() == 128 ? 1.2 : 1;  // keys serve fewer queries
    const double full = narrow * scores * (0.166 + 0.005 * dim);
    return {full, 1.1 * full};
  }
  if (tile.row_blocks == 1) {
    const double full = scores * (0.245 + 0.0158 * dim);
    return {full, 1.54 * full};
  }
  if (tile.warps > 4) return {scores * (0.166 + 0.0088 * dim), scores * (0.166 + 0.0088 * dim)};
  const double full = scores * (0.283 + 0.0084 * dim);
  return {full, 2.15 * full};
}

// About m / splits, in whole steps.
int64_t keys_of_part(const Problem& problem, const ForwardTile& tile, int splits) {
  return ceil_div(ceil_div(problem.m, splits), tile.keys) * tile.keys;
}

// Steps of the block that gets most where few tiles go round in turns, each with `block_steps`
// more: how evenly they fall is the difference between good and bad tiles and splits.
double most_steps_of_turns(const Problem& problem, const Device& device, const ForwardTile& tile,
                           int splits, double block_steps) {
  const int64_t heads = problem.batches * problem.heads;
  const int64_t part = keys_of_part(problem, tile, splits);
  std::vector<double> steps(static_cast<size_t>(device.sm_count));
  int place = 0, direction = 1;
  for (int64_t row_tile = ceil_div(problem.n, tile.rows()) - 1; row_tile >= 0; --row_tile) {
    const int64_t last = std::min(problem.n, (row_tile + 1) * tile.rows()) - 1;
    const int64_t seen =
        problem.causal ? std::clamp<int64_t>(last + problem.diagonal + 1, 0, problem.m) : problem.m;
    for (int split = 0; split < splits; ++split) {
      const int64_t keys = std::min(seen - split * part, part);
      const double more =
          keys > 0 ? static_cast<double>(ceil_div(keys, tile.keys)) + block_steps : 0;
      for (int64_t head = 0; head < heads; ++head) {
        steps[place] += more;
        if (place + direction < 0 || place + direction == device.sm_count) {
          direction = -direction;
        } else {
          place += direction;
        }
      }
    }
  }
  return *std::max_element(steps.begin(), steps.end());
}

struct Candidate {
  TileShape shape;
  int splits;
  double cost;
};

// Sums over row tiles are taken as if the number of keys grew evenly from the first to the last.
double cost_of(const Problem& problem, const Device& device, int dim, const ForwardTile& tile,
               int splits) {
  constexpr double kMergeMicroseconds = 2.2, kMergeBytesPerMicrosecond = 3.1e6;
  const bool turns = takes_turns(problem, tile, splits);
  // Prologue and epilogue of a block.
  const double block_steps = !tile.warpgroups ? 0.4 * 64 / tile.keys : turns ? 1.8 : 3;
  // The same of one that others run beside and behind.
  const double busy_steps = tile.warpgroups ? block_steps : 2.5 * 64 / tile.keys;
  // Microseconds: barriers, maps, registers.
  const double start = !tile.warpgroups ? 0 : turns ? 2 : 3;
  // Of the time of a multiprocessor's last blocks: the others wait.
  const double tail = !tile.warpgroups ? 0.32 : turns ? 0.4 : 0.8;
  const double heads = static_cast<double>(problem.batches) * problem.heads;
  const double row_tiles = static_cast<double>(ceil_div(problem.n, tile.rows()));
  const auto steps_at = [&](int64_t row) {  // that this query needs
    const int64_t seen =
        problem.causal ? std::clamp<int64_t>(row + problem.diagonal + 1, 0, problem.m) : problem.m;
    return static_cast<double>(ceil_div(seen, tile.keys));
  };
  const double first = steps_at(std::min<int64_t>(tile.rows(), problem.n) - 1);
  const double longest = std::max(1.0, steps_at(problem.n - 1));
  const double mean = (first + longest) / 2;
  const double chunk = std::min<double>(longest, ceil_div(ceil_div(problem.m, splits), tile.keys));
  const double parts = splits == 1       ? 1
                       : first < longest ? std::max(1.0, mean / chunk + 0.5)
                                         : std::ceil(longest / chunk);
  const double blocks = heads * row_tiles * parts;
  const StepTime time = step_time(problem.element, dim, tile);
  const int resident =
      resident_blocks(tile, forward_shared_bytes(problem.element, dim, tile), device);
  const double per_sm = std::ceil(blocks / device.sm_count);
  const double work = (heads * row_tiles * mean + busy_steps * blocks) / device.sm_count;
  double cost = start + std::max(time.alone * (chunk + block_steps), time.full * work);
  constexpr int kFewTurns = 6;  // of more the mean says enough, and its sum takes no time
  if (turns && !problem.causal && splits == 1) {
    cost = start + time.full * per_sm * (longest + block_steps);
  } else if (turns && blocks <= kFewTurns * device.sm_count) {
    cost = start + time.full * most_steps_of_turns(problem, device, tile, splits, block_steps);
  } else if (per_sm <= resident) {
    cost = std::max(cost, per_sm * time.full * (chunk + block_steps));
  } else {
    // Unsplit causal blocks come longest first, and the short ones fill the end.
    const double alike = first < longest ? 1 - 1.0 / splits : 1;
    cost += tail * alike * resident * time.full * (chunk + block_steps);
  }
  if (splits == 1) return cost;
  const double bytes = 2 * parts * heads * problem.n * problem.head_dim * sizeof(float);
  return cost + kMergeMicroseconds + bytes / kMergeBytesPerMicrosecond;
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

ForwardPlan plan_of(const Problem& problem, const Device& device, TileShape shape, int splits) {
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
  plan.section_heads = section_heads(problem, kForwardSectionBytes);
  if (takes_turns(problem, tile, splits)) {
    plan.resident_blocks = std::min<int64_t>(plan.blocks, device.sm_count);
    plan.section_heads = section_heads_of_turns(problem, device, plan.row_tiles);
  }
  if (plan.splits > 1)
    plan.workspace_bytes = plan.splits * heads * problem.n * (problem.head_dim + 2) * sizeof(float);
  return plan;
}

ForwardPlan plan_forward(const Problem& problem, const Device& device) {
  const Candidate chosen = choose(problem, device, padded_dim(problem.head_dim));
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
