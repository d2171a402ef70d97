#include "flashstep/attention/cuda/backward_plan.h"

#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"

namespace flashstep::attention_cuda {

using attention_kernel::sees_evenly;
using attention_kernel::with_bounded_mask;

namespace {

// Query rows of a head in the workspace: a multiple of every tile and step.
constexpr int64_t kRowPadding = 128;

// What the blocks of a section share in L2: half of the 50 MB of an H100, a whole A100's partition.
constexpr int64_t kBackwardSectionBytes = int64_t{24} << 20;
// Where sums are ordered under a causal mask: more heads, so that fewer blocks wait for each other.
constexpr int64_t kOrderedSectionBytes = int64_t{48} << 20;

// Slices of sums in two passes; beyond, tiles are cut into fewer chunks, or these come in waves.
constexpr int64_t kSliceBytes = int64_t{256} << 20;

// A block's start and end (loading its tile, storing its results) as a number of steps; and when it
// leaves sums, which another kernel reads. With these an H200's times of one head, N 512..65536,
// are within 10 % of those of the best number of chunks.
constexpr double kBlockSteps = 1.5;
constexpr double kSumBlockSteps = 3;

// Queries (or keys) whose parts one accumulator adds in a row where float32 accuracy is promised:
// the first keys of a causal mask get large parts first and thousands of small ones after, each
// rounded against the large sum. On an H200, N 65536, D 64, dK's and dV's errors are 19 and 15
// times those of a formula summed in blocks without the bound, 2 with it, and no slower.
constexpr int64_t kLongestSum = 2048;

constexpr int64_t kRegisters = 65536;      // of a multiprocessor
constexpr int64_t kThreadRegisters = 256;  // at most, and these kernels come near

Arithmetic arithmetic_of(const Problem& problem) {
  switch (problem.element) {
    case Element::kBfloat16:
      return Arithmetic::kBfloat16;
    case Element::kFloat16:
      return Arithmetic::kFloat16;
    case Element::kFloat32:
      break;
  }
  return problem.tf32 ? Arithmetic::kTf32 : Arithmetic::kTf32x3;
}

SharedMemoryTier tier_of(const Device& device) {
  for (SharedMemoryTier tier : {SharedMemoryTier::k227KiB, SharedMemoryTier::k163KiB})
    if (device.shared_bytes_per_block >= shared_bytes(tier)) return tier;
  return SharedMemoryTier::k99KiB;
}

// Blocks that run at the same time.
int64_t block_slots(const Device& device, int shared, int64_t by_registers) {
  constexpr int kReserved = 1024;  // shared memory that a block takes besides its own
  const int64_t by_memory = device.shared_bytes_per_sm / (shared + kReserved);
  return device.sm_count * std::max<int64_t>(1, std::min(by_memory, by_registers));
}

// Steps of a tile, over all tiles of a head.
struct Steps {
  int64_t tiles, total, longest;
};

template <typename StepsOfTile>
Steps count_steps(int64_t tiles, const StepsOfTile& steps_of_tile) {
  Steps steps = {tiles, 0, 0};
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t count = steps_of_tile(tile);
    steps.total += count;
    steps.longest = std::max(steps.longest, count);
  }
  return steps;
}

// Steps of `rows` queries or keys that one block may add up.
int64_t most_steps(Arithmetic arithmetic, int rows) {
  constexpr int64_t kAny = int64_t{1} << 40;  // more than fit into memory, and far from overflow
  return arithmetic == Arithmetic::kTf32x3 ? kLongestSum / rows : kAny;
}

// Sections of one size, of at most so many heads: a last one of few would begin its longest tiles
// when the others end.
int64_t section_of(int64_t heads, int64_t most) {
  return ceil_div(heads, ceil_div(heads, std::clamp<int64_t>(most, 1, heads)));
}

// The chunks that let the pass end first, in steps of one multiprocessor's slot: one chunk where
// all blocks run at once; else all work evenly spread and a tail in which slots wait for the last
// blocks, half a chunk - less for whole tiles of a causal mask, whose last ones have few steps.
BackwardGrid cut(const Steps& steps, int64_t heads, int64_t slots, int64_t most_steps,
                 int64_t most_chunks, int64_t head_bytes) {
  BackwardGrid best = {};
  double best_time = INFINITY;
  // More than 8 blocks a slot, half of them empty under a causal mask, even out nothing.
  const int64_t useful = 1 + 8 * slots / (steps.tiles * heads);
  const int64_t allowed = std::max<int64_t>(1, std::min(steps.longest, most_chunks));
  const int64_t least = std::clamp<int64_t>(ceil_div(steps.longest, most_steps), 1, allowed);
  const int64_t most = std::clamp<int64_t>(useful, least, allowed);
  for (int64_t chunks = least; chunks <= most; ++chunks) {
    const int64_t chunk_steps = std::max<int64_t>(1, ceil_div(steps.longest, chunks));
    if (ceil_div(steps.longest, chunk_steps) < chunks && chunks > least) continue;
    const double overhead = chunks > 1 ? kSumBlockSteps : kBlockSteps;
    // The last chunk of a tile is half full on average where tiles differ.
    const bool even = steps.total == steps.tiles * steps.longest;
    const double blocks =
        heads * (even ? static_cast<double>(steps.tiles * chunks)
                      : static_cast<double>(steps.total) / chunk_steps + 0.5 * steps.tiles);
    const double work = heads * static_cast<double>(steps.total) + blocks * overhead;
    const double tail = (!even && chunks == 1 ? 0.1 : 0.5) * chunk_steps;
    const double time = blocks <= slots ? chunk_steps + overhead
                                        : std::max(work / slots + tail, chunk_steps + overhead);
    if (time < best_time) {
      best_time = time;
      best = {heads, steps.tiles, chunk_steps, chunks, chunks, 0, 0};
    }
  }
  if (best.chunk_steps > most_steps) {
    best.chunk_steps = most_steps;
    best.chunks = ceil_div(steps.longest, most_steps);
  }
  best.section_heads = section_of(heads, kBackwardSectionBytes / head_bytes);
  best.blocks =
      ceil_div(heads, best.section_heads) * best.section_heads * best.tiles * best.wave_chunks;
  return best;
}

// Where blocks need not wait for each other. Tiles that are alike run side by side, those of a head
// together. For the others of a causal mask sections fill the GPU once, and a few blocks are one
// section, whose long tiles come first.
int64_t section_of_tiles(int64_t heads, int64_t tiles, bool alike, int64_t sm_count) {
  constexpr int64_t kFew = 3;  // times the GPU
  if (alike) return 1;
  if (heads * tiles <= kFew * sm_count) return heads;
  return section_of(heads, (sm_count + tiles / 2) / tiles);
}

// Whole tiles, and no block without one.
BackwardGrid uncut(const Steps& steps, int64_t heads, int64_t section_heads) {
  BackwardGrid grid = {};
  grid.heads = heads;
  grid.tiles = steps.tiles;
  grid.chunk_steps = std::max<int64_t>(1, steps.longest);
  grid.chunks = grid.wave_chunks = 1;
  grid.section_heads = section_heads;
  grid.blocks = heads * grid.tiles;
  return grid;
}

// Heads whose Q and dO a section holds in L2: of the query heads of a key head one is in work at a
// time.
int64_t ordered_section(const Problem& problem) {
  const int64_t head_bytes = problem.n * 2 * padded_dim(problem.head_dim) * 2;
  return section_of(problem.batches * problem.kv_heads,
                    (problem.causal ? kOrderedSectionBytes : kBackwardSectionBytes) / head_bytes);
}

void lay_out(BackwardPlan& plan, const Problem& problem) {
  const int64_t rows = problem.batches * problem.heads * plan.padded_n;
  plan.q_slice = rows * plan.padded_dim;
  plan.k_slice = problem.batches * problem.kv_heads * plan.padded_m * plan.padded_dim;
  plan.logsumexp_at = 0;
  plan.row_dots_at = rows;
  plan.turns_at = 2 * rows;
  constexpr int kAligned = 4;  // copies and sums are of 16 bytes
  plan.q_sums_at =
      plan.turns_at +
      (plan.ordered ? ceil_div(rows / plan.keys_tile.queries, kAligned) * kAligned : 0);
  plan.k_sums_at = plan.q_sums_at + plan.q_slices * plan.q_slice;
  plan.v_sums_at = plan.k_sums_at + plan.k_slices * plan.k_slice;
  plan.workspace_floats = plan.v_sums_at + plan.k_slices * plan.k_slice;
}

// Steps of 128 by 128 of the multiprocessor that gets most, when `heads` have such tiles.
struct Span {
  double heads;
  Steps steps;
  bool alike;
  double sm_count;

  // Long tiles come first under a causal mask; what is left of them at the end is `tail` of one.
  // `more` steps are waited for.
  double most(double tail, double more) const {
    const double longest = static_cast<double>(steps.longest);
    const double blocks = heads * static_cast<double>(steps.tiles);
    if (alike) return std::ceil(blocks / sm_count) * longest + more;
    const double even = heads * static_cast<double>(steps.total) / sm_count;
    return std::max(even + tail * longest + more, longest);
  }
};

// Of the three forms, the one whose time is least, in microseconds of an H200. By warps, few tiles
// are cut for all multiprocessors. Warpgroups take whole tiles. One pass of them has sums to add to
// and to round, beyond L2 where they are large; in order, a block begins when the ones before it in
// its head have.
//
// Fitted to 485 shapes (bfloat16, D 64 and 128, 1 to 256 heads, N 256 to 32768). The form taken is
// slower than the best one by 0.8 % in the mean where bits repeat, by 0.2 % where they need not, at
// most by 28 and 15 %; where half of the shapes were fitted, in the other half by 1.1 and 0.2 %
// (reports/attention_h200/forward_and_order).
BackwardForm choose_form(const Problem& problem, const Device& device) {
  const Arithmetic arithmetic = arithmetic_of(problem);
  const int dim = padded_dim(problem.head_dim);
  if (!device.warpgroups || !has_warpgroups(arithmetic, dim)) return BackwardForm::kWarps;
  constexpr int kRows = kWarpgroupRows;
  const double heads = static_cast<double>(problem.batches) * problem.heads;
  const double key_heads = static_cast<double>(problem.batches) * problem.kv_heads;
  const auto span = [&](double of_heads, const Steps& steps) {
    return Span{of_heads, steps, sees_evenly(problem), static_cast<double>(device.sm_count)};
  };
  const Span keys =
      span(key_heads, count_steps(ceil_div(problem.m, kRows), [&](int64_t tile) {
             return problem.heads / problem.kv_heads *
                    query_tiles(problem, tile * kRows, (tile + 1) * kRows, kRows).size();
           }));
  const Span queries =
      span(heads, count_steps(ceil_div(problem.n, kRows), [&](int64_t tile) {
             return key_tiles(problem, tile * kRows, (tile + 1) * kRows, kRows).size();
           }));
  const double even = heads * static_cast<double>(queries.steps.total) / device.sm_count;

  const double by_warps =
      problem.deterministic ? 44 + (0.65 + 0.08 * dim) * even : 26 + (0.35 + 0.067 * dim) * even;
  constexpr double kOfKeys = 4.0 / 7;  // of a step's products; the rest is dQ's
  const double two_passes = 12 + (1.25 + 0.027 * dim) * (kOfKeys * keys.most(0.14, 0) +
                                                         (1 - kOfKeys) * queries.most(0.14, 0));
  double one_pass = INFINITY;
  if (has_one_pass_of_warpgroups(arithmetic, dim)) {
    const double rows = heads * static_cast<double>(ceil_div(problem.n, kRows) * kRows);
    const double near_rows = static_cast<double>(int64_t{16} << 20) / (4 * dim);
    double wait = 0;  // steps of the last of a head's blocks that begin together
    if (problem.deterministic) {
      const double begun = static_cast<double>(device.sm_count) / ordered_section(problem);
      // Where all see the last query. The others of a window begin at different tiles, each where
      // the block before it is a step later.
      const double together =
          static_cast<double>(std::min(keys.steps.tiles, ceil_div(problem.window, kRows)));
      wait = (dim > 64 ? 0.6 : problem.causal ? 1.5 : 2.5) * std::min(together, begun);
    }
    one_pass = 19 + (0.7 + 0.0173 * dim) * keys.most(0.16, wait) +
               1e-5 * dim * (0.17 * rows + 0.375 * std::max(0.0, rows - near_rows));
  }
  return one_pass <= std::min(two_passes, by_warps) ? BackwardForm::kWarpgroupsOnePass
         : two_passes <= by_warps                   ? BackwardForm::kWarpgroups
                                                    : BackwardForm::kWarps;
}

}  // namespace

BackwardPlan plan_backward(const Problem& problem, const Device& device) {
  return plan_of(problem, device, choose_form(with_bounded_mask(problem), device));
}

BackwardPlan plan_of(const Problem& any_problem, const Device& device, BackwardForm form) {
  const Problem problem = with_bounded_mask(any_problem);
  BackwardPlan plan = {};
  plan.sm_count = device.sm_count;
  plan.arithmetic = arithmetic_of(problem);
  plan.padded_dim = padded_dim(problem.head_dim);
  plan.warpgroups = form != BackwardForm::kWarps;
  plan.one_pass =
      plan.warpgroups ? form == BackwardForm::kWarpgroupsOnePass : !problem.deterministic;
  plan.ordered = plan.one_pass && problem.deterministic;
  plan.tier = tier_of(device);
  plan.keys_tile = plan.warpgroups ? warpgroup_keys_tile(plan.padded_dim)
                                   : keys_tile(plan.arithmetic, plan.padded_dim, plan.tier);
  plan.queries_tile = plan.warpgroups ? warpgroup_queries_tile(plan.padded_dim)
                                      : queries_tile(plan.arithmetic, plan.padded_dim);
  plan.padded_n = ceil_div(problem.n, kRowPadding) * kRowPadding;
  plan.padded_m = ceil_div(problem.m, plan.keys_tile.keys) * plan.keys_tile.keys;

  const int64_t row_bytes = int64_t{2} * plan.padded_dim * element_bytes(plan.arithmetic);
  const int64_t sum_row_bytes = int64_t{4} * plan.padded_dim;
  const int64_t key_heads = problem.batches * problem.kv_heads;
  const int64_t query_heads = problem.batches * problem.heads;
  // Two passes keep every chunk's sums: dK and dV, or dQ.
  const int64_t key_slice_bytes = 2 * key_heads * plan.padded_m * sum_row_bytes;
  const int64_t query_slice_bytes = query_heads * plan.padded_n * sum_row_bytes;

  const Steps key_steps = count_steps(ceil_div(problem.m, plan.keys_tile.keys), [&](int64_t tile) {
    return key_tile_steps(problem, plan.keys_tile, tile);
  });
  const auto query_steps = [&] {
    return count_steps(ceil_div(problem.n, plan.queries_tile.queries), [&](int64_t tile) {
      return query_tile_steps(problem, plan.queries_tile, tile);
    });
  };
  const int64_t query_head_bytes = problem.m * row_bytes;
  if (plan.warpgroups) {
    const auto section = [&](int64_t heads, const Steps& steps) {
      return section_of_tiles(heads, steps.tiles, sees_evenly(problem), device.sm_count);
    };
    plan.keys = uncut(key_steps, key_heads,
                      plan.ordered ? ordered_section(problem) : section(key_heads, key_steps));
    plan.q_slices = plan.one_pass;
    if (!plan.one_pass) {
      const Steps steps = query_steps();
      plan.queries = uncut(steps, query_heads, section(query_heads, steps));
    }
    lay_out(plan, problem);
    return plan;
  }
  const int64_t key_head_bytes = problem.heads / problem.kv_heads * problem.n *
                                 (row_bytes + (plan.one_pass ? sum_row_bytes : 0));
  plan.keys =
      cut(key_steps, key_heads,
          block_slots(device, shared_bytes(plan.keys_tile, plan.arithmetic, plan.padded_dim),
                      plan.keys_tile.blocks),
          most_steps(plan.arithmetic, plan.keys_tile.queries),
          plan.one_pass ? INT64_MAX : kSliceBytes / key_slice_bytes, key_head_bytes);
  plan.k_slices = plan.keys.wave_chunks == 1 ? 0 : plan.one_pass ? 1 : plan.keys.wave_chunks;
  if (plan.one_pass) {
    plan.q_slices = 1;
  } else {
    plan.queries =
        cut(query_steps(), query_heads,
            block_slots(device, shared_bytes(plan.queries_tile, plan.arithmetic, plan.padded_dim),
                        kRegisters / (kThreadRegisters * threads(plan.queries_tile))),
            most_steps(plan.arithmetic, plan.queries_tile.keys), kSliceBytes / query_slice_bytes,
            query_head_bytes);
    plan.q_slices = plan.queries.wave_chunks == 1 ? 0 : plan.queries.wave_chunks;
  }
  lay_out(plan, problem);
  return plan;
}

std::string describe(const BackwardPlan& plan) {
  const auto grid = [](const BackwardGrid& grid) {
    return str(grid.tiles, " tiles x ", grid.chunks, " chunks of ", grid.chunk_steps, " steps, ",
               grid.wave_chunks, " at a time, ", grid.heads, " heads by ", grid.section_heads);
  };
  return str(plan.warpgroups ? "warpgroups, " : "",
             plan.ordered    ? "one ordered pass"
             : plan.one_pass ? "one pass"
                             : "two passes",
             ", head dim ", plan.padded_dim, ", key tiles of ", plan.keys_tile.keys,
             " in steps of ", plan.keys_tile.queries, ": ", grid(plan.keys),
             plan.one_pass ? std::string()
                           : str("; query tiles of ", plan.queries_tile.queries, " in steps of ",
                                 plan.queries_tile.keys, ": ", grid(plan.queries)),
             "; workspace ", plan.workspace_floats * 4, " bytes");
}

}  // namespace flashstep::attention_cuda
