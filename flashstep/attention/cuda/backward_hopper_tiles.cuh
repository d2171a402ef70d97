// What a block of Hopper's backward passes works on, and the copies that bring it: tiles in shared
// memory, their barriers, the block's place in the grid.
#pragma once

#include "flashstep/attention/cuda/backward_plan.h"
#include "flashstep/attention/cuda/hopper.cuh"
#include "flashstep/attention/cuda/ptx.cuh"

namespace flashstep::attention_cuda {

enum class GradientsOf { kKeys, kQueries, kAll };  // what a pass computes

// K and V, Q and dO, or the other way round.
struct BackwardMaps {
  CUtensorMap left[2], right[2];
};

// A block's tiles and the barriers that say what is there.
template <GradientsOf kOf, int kDim, bool kWindow_ = false>
struct WarpgroupTiles {
  static constexpr bool kWindow = kWindow_;  // whether there is one, or documents
  static constexpr bool kOfAll = kOf == GradientsOf::kAll;
  static constexpr bool kOfKeys = kOf != GradientsOf::kQueries;  // a block owns keys
  static constexpr int kLeftRows = kWarpgroupRows, kGroups = kLeftRows / 64;
  static constexpr int kRightRows =
      kOfKeys ? warpgroup_keys_tile(kDim).queries : warpgroup_queries_tile(kDim).keys;
  static constexpr int kStages =
      kOfKeys ? warpgroup_keys_tile(kDim).stages : warpgroup_queries_tile(kDim).stages;
  static constexpr int kColumns = (kDim + kSwizzledColumns - 1) / kSwizzledColumns;
  static constexpr int kLeftColumn = kLeftRows * kSwizzledRow;
  static constexpr int kRightColumn = kRightRows * kSwizzledRow;
  static constexpr int kLeftBytes = kColumns * kLeftColumn, kRightBytes = kColumns * kRightColumn;
  static constexpr int kStatBytes = kOfKeys ? kRightRows * 4 : 0;  // dQ's are in registers
  static constexpr int kStageBytes = 2 * kRightBytes;
  // One pass: two steps' gradients of scores, and the staged dQ of a step.
  static constexpr int kBuffers = kOfAll ? 2 : 0;
  static constexpr int kScoreBytes = kLeftRows * kRightRows * 2;
  static constexpr int kSumBytes = kOfAll ? kRightRows * kDim * 4 : 0;
  static constexpr int kAdders = kOfAll ? 3 : 0;  // warps that add dQ
  static constexpr int kScoresAt = 2 * kLeftBytes + kStages * kStageBytes;
  static constexpr int kSumsAt = kScoresAt + kBuffers * kScoreBytes;
  static constexpr int kStatsAt = kSumsAt + kSumBytes;
  static constexpr int kBarriersAt = kStatsAt + kStages * 2 * kStatBytes;
  static constexpr int kBarriers = 1 + 3 * kStages + 2 * kBuffers + kAdders + kOfAll;
  static constexpr int kBytes = kBarriersAt + 8 * kBarriers + kSwizzleBytes;
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;
  static_assert(kBytes <= shared_bytes(SharedMemoryTier::k227KiB));

  uint32_t left[2];
  uint32_t right;                             // first and second tile of a stage, stage after stage
  uint32_t stats;                             // logsumexp and D of a stage's queries
  uint32_t here;                              // left
  uint32_t first_here, second_here, free;     // by stage
  uint32_t scores, scores_here, scores_free;  // by buffer
  uint32_t sums, sums_free;
  uint32_t sums_here;  // by adder

  __device__ explicit WarpgroupTiles(char* shared) {
    const uint32_t start =
        (shared_address(shared) + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes;
    left[0] = start;
    left[1] = start + kLeftBytes;
    right = start + 2 * kLeftBytes;
    stats = start + kStatsAt;
    here = start + kBarriersAt;
    first_here = here + 8;
    second_here = first_here + 8 * kStages;
    free = second_here + 8 * kStages;
    scores = start + kScoresAt;
    scores_here = free + 8 * kStages;
    scores_free = scores_here + 8 * kBuffers;
    sums = start + kSumsAt;
    sums_here = scores_free + 8 * kBuffers;
    sums_free = sums_here + 8 * kAdders;
    if (threadIdx.x == 0) {
      init_barrier(here, 1);
      for (int stage = 0; stage < kStages; ++stage) {
        init_barrier(first_here + 8 * stage, 1);
        init_barrier(second_here + 8 * stage, 1);
        init_barrier(free + 8 * stage, kGroups);
      }
      for (int buffer = 0; buffer < kBuffers; ++buffer) {
        init_barrier(scores_here + 8 * buffer, kGroups * kWarpgroup);
        init_barrier(scores_free + 8 * buffer, kGroups);
      }
      for (int adder = 0; adder < kAdders; ++adder)
        init_barrier(sums_here + 8 * adder, kGroups * kWarpgroup);
      if constexpr (kOfAll) init_barrier(sums_free, 1);
      fence_barriers();
    }
    __syncthreads();
  }

  __device__ uint32_t stage_stats(int stage) const { return stats + stage * 2 * kStatBytes; }

  // The rows from `row` on of one head, into a tile.
  __device__ static void copy(uint32_t to, int column_bytes, const CUtensorMap& map, int row,
                              int head, int batch, uint32_t barrier) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      copy_tile(to + c * column_bytes, map, c * kSwizzledColumns, row, head, batch, barrier);
  }
};

// Blocks start in the order of their index: heads in sections, and in a section the tiles with most
// steps first.
struct BackwardTile {
  int batch, head, tile;
};

__device__ inline BackwardTile tile_of_block(const BackwardGrid& grid, int heads, bool last_first) {
  const int tiles = static_cast<int>(grid.tiles), section = static_cast<int>(grid.section_heads);
  const int index = static_cast<int>(blockIdx.x);
  const int first_head = index / (tiles * section) * section;
  const int here = min(section, static_cast<int>(grid.heads) - first_head);
  const int rest = index - first_head * tiles;
  const int batch_head = first_head + rest % here, tile = rest / here;
  return {batch_head / heads, batch_head % heads, last_first ? tiles - 1 - tile : tile};
}

// What a block computes: its left rows, and the tiles of the right heads that they meet.
template <typename Tiles>
struct BackwardWork {
  int batch, head, first_left;
  int first_right_head, right_heads;
  int first_tile, end_tile;

  __device__ explicit BackwardWork(const BackwardArguments& args) {
    const Problem& problem = args.pass.problem;
    const int heads = static_cast<int>(problem.heads),
              kv_heads = static_cast<int>(problem.kv_heads);
    const BackwardTile at = Tiles::kOfKeys
                                ? tile_of_block(args.plan.keys, kv_heads, /*last_first=*/false)
                                : tile_of_block(args.plan.queries, heads, /*last_first=*/true);
    batch = at.batch;
    head = at.head;
    first_left = at.tile * Tiles::kLeftRows;
    if constexpr (Tiles::kOfKeys) {
      right_heads = heads / kv_heads;
      first_right_head = head * right_heads;
      constexpr int kRight = Tiles::kRightRows;
      const int end = first_left + Tiles::kLeftRows;
      take(Tiles::kWindow ? query_tiles(problem, batch, first_left, end, kRight)
                          : query_tiles(problem, first_left, end, kRight));
    } else {
      right_heads = 1;
      first_right_head = head / (heads / kv_heads);
      constexpr int kRight = Tiles::kRightRows;
      const int end = first_left + Tiles::kLeftRows;
      take(Tiles::kWindow ? key_tiles(problem, batch, first_left, end, kRight)
                          : key_tiles(problem, first_left, end, kRight));
    }
  }

 private:
  __device__ void take(Range tiles) {
    first_tile = static_cast<int>(tiles.begin);
    end_tile = static_cast<int>(tiles.end);
  }
};

// f(step, query head or key head, tile) for all steps of a block: tiles come from the first to the
// last in two passes, from the last to the first in one.
template <typename Tiles, typename F>
__device__ inline void for_each_step(const BackwardWork<Tiles>& work, F&& f) {
  const int tiles = work.end_tile - work.first_tile;
  int step = 0;
  for (int right = 0; right < work.right_heads; ++right) {
    for (int i = 0; i < tiles; ++i, ++step) {
      const int tile = Tiles::kOfAll ? work.end_tile - 1 - i : work.first_tile + i;
      f(step, work.first_right_head + right, tile);
    }
  }
}

// Copies all tiles of the work, each as soon as its place is free.
template <typename Tiles>
__device__ inline void copy_backward_tiles(const Tiles& tiles, const BackwardWork<Tiles>& work,
                                           const BackwardArguments& args,
                                           const BackwardMaps& maps) {
  arrive_expecting(tiles.here, 2 * Tiles::kLeftBytes);
#pragma unroll
  for (int i = 0; i < 2; ++i)
    Tiles::copy(tiles.left[i], Tiles::kLeftColumn, maps.left[i], work.first_left, work.head,
                work.batch, tiles.here);
  if (Tiles::kOfKeys) wait_for_previous_kernel();  // the statistics are its results
  for_each_step(work, [&](int step, int head, int tile) {
    const int64_t stat_row =
        (static_cast<int64_t>(work.batch) * args.pass.problem.heads + head) * args.plan.padded_n;
    const int stage = step % Tiles::kStages, row = tile * Tiles::kRightRows;
    wait_barrier(tiles.free + 8 * stage, step / Tiles::kStages % 2 ^ 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t here = (i == 0 ? tiles.first_here : tiles.second_here) + 8 * stage;
      arrive_expecting(here, Tiles::kRightBytes + Tiles::kStatBytes);
      Tiles::copy(tiles.right + stage * Tiles::kStageBytes + i * Tiles::kRightBytes,
                  Tiles::kRightColumn, maps.right[i], row, head, work.batch, here);
      if constexpr (Tiles::kOfKeys)
        copy_bytes(tiles.stage_stats(stage) + i * Tiles::kStatBytes,
                   (i == 0 ? args.logsumexp : args.row_dots) + stat_row + row, Tiles::kStatBytes,
                   here);
    }
  });
}

}  // namespace flashstep::attention_cuda
