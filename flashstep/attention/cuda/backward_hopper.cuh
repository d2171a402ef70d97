// The backward pass on Hopper, by warpgroups, in two passes: dK and dV, then dQ. Nothing is added
// across blocks, so bits repeat. backward_hopper_one_pass.cuh is built of its parts.
//
// Both passes are one kernel. A block's own rows (`left`: K and V, or Q and dO) stay in shared
// memory while tiles of the others (`right`) come and go. Scores are left right^T in both, so that
// their accumulators are, without a way through shared memory, the left operands of the next
// products. One warp copies by TMA, two warpgroups of 64 left rows compute. Formulas are those of
// backward_keys.cuh and backward_queries.cuh.
#pragma once

#include <climits>

#include "flashstep/attention/cuda/backward_plan.h"
#include "flashstep/attention/cuda/backward_sums.cuh"
#include "flashstep/attention/cuda/head_rows.cuh"
#include "flashstep/attention/cuda/hopper.cuh"
#include "flashstep/attention/cuda/launch.cuh"
#include "flashstep/attention/cuda/tensor_map.h"

namespace flashstep::attention_cuda {

enum class GradientsOf { kKeys, kQueries, kAll };  // what a pass computes

// K and V, Q and dO, or the other way round.
struct BackwardMaps {
  CUtensorMap left[2], right[2];
};

// A block's tiles and the barriers that say what is there.
template <GradientsOf kOf, int kDim>
struct WarpgroupTiles {
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

// left (64 rows of this warpgroup) right^T: the scores of a step.
template <typename Tiles, typename Product, int kDim, int kBlocks>
__device__ inline void start_scores(float (&c)[kBlocks][4], uint32_t left, uint32_t right) {
  start_rows_product<Product, kDim>(c, left, Tiles::kLeftColumn, right, Tiles::kRightColumn);
}

// Blocks start in the order of their index: heads in sections that fit into L2, and in a section
// the tiles with most steps first.
struct TileOfHead {
  int batch, head, tile;
};

__device__ inline TileOfHead tile_of_block(const BackwardGrid& grid, int heads, bool last_first) {
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
    const TileOfHead at = Tiles::kOfKeys
                              ? tile_of_block(args.plan.keys, kv_heads, /*last_first=*/false)
                              : tile_of_block(args.plan.queries, heads, /*last_first=*/true);
    batch = at.batch;
    head = at.head;
    first_left = at.tile * Tiles::kLeftRows;
    if constexpr (Tiles::kOfKeys) {
      right_heads = heads / kv_heads;
      first_right_head = head * right_heads;
      first_tile = static_cast<int>(first_query_tile(problem, first_left, Tiles::kRightRows));
      end_tile = static_cast<int>(ceil_div(problem.n, Tiles::kRightRows));
    } else {
      right_heads = 1;
      first_right_head = head / (heads / kv_heads);
      const int last = min(first_left + Tiles::kLeftRows, static_cast<int>(problem.n)) - 1;
      first_tile = 0;
      end_tile = static_cast<int>(visible_key_tiles(problem, last, Tiles::kRightRows));
    }
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

// f(score, block, element, statistic of its query) for all scores of a step. Queries are columns of
// dK's scores, whose statistics are in shared memory, and rows of dQ's.
template <bool kOfKeys, int kBlocks, typename F>
__device__ inline void with_stats(float (&scores)[kBlocks][4], uint32_t of_columns,
                                  const float (&of_rows)[2], F&& f) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    float of_query[2] = {of_rows[0], of_rows[1]};
    if constexpr (kOfKeys) {
      const uint2 pair = load_shared_pair(of_columns + 32 * j);
      of_query[0] = __uint_as_float(pair.x);
      of_query[1] = __uint_as_float(pair.y);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) f(scores[j][i], j, i, of_query[kOfKeys ? i % 2 : i / 2]);
  }
}

// Weights of the pairs of a step that a causal mask hides are 0, and those of keys beyond the last:
// of zeros a weight of exp(-logsumexp), which may overflow, would come. first_row: the warp's
// first.
template <typename Tiles, int kBlocks>
__device__ inline void hide_scores(float (&weights)[kBlocks][4], const Problem& problem,
                                   const BackwardWork<Tiles>& work, int tile, int first_row,
                                   int lane) {
  constexpr bool kOfKeys = Tiles::kOfKeys;
  const int first_right = tile * Tiles::kRightRows;
  const int diagonal = static_cast<int>(problem.diagonal), keys = static_cast<int>(problem.m);
  const int end_key =
      kOfKeys ? work.first_left + Tiles::kLeftRows : first_right + Tiles::kRightRows;
  const int first_query = kOfKeys ? first_right : work.first_left;
  const bool is_hidden = problem.causal && end_key - 1 > first_query + diagonal;
  if (!is_hidden && end_key <= keys) return;
  // Of a key's row the first query that sees it; of a query's the end of the keys that it sees.
  int bounds[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int left_at = first_row + lane / 4 + 8 * half;
    if constexpr (kOfKeys)
      bounds[half] = left_at >= keys ? INT_MAX : problem.causal ? left_at - diagonal : INT_MIN;
    else
      bounds[half] = problem.causal ? min(keys, left_at + diagonal + 1) : keys;
  }
  const int column = first_right + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int right_at = column + 8 * j + i % 2, bound = bounds[i / 2];
      if (kOfKeys ? right_at < bound : right_at >= bound) weights[j][i] = 0;
    }
  }
}

// Sums of 64 rows of a warpgroup to their gradient.
template <Element kElement, int kDim>
__device__ inline void put_gradient(const Output& to, int64_t batch, int64_t head, int first_row,
                                    int64_t rows, int columns, float factor,
                                    const float (&sums)[kDim / 8][4], int lane) {
  constexpr int kBytes = element_bytes(kElement);
  put_rows<kElement, 1, kDim / 8>(
      head_data<kBytes>(to, batch, head), to.strides.row * kBytes, first_row, rows, 0, columns,
      factor, reinterpret_cast<const float(&)[1][kDim / 8][4]>(sums), lane, /*add=*/false);
}

template <GradientsOf kOf, Element kElement, int kDim>
__global__ void __launch_bounds__(WarpgroupTiles<kOf, kDim>::kThreads, 1)
    backward_hopper_kernel(const __grid_constant__ BackwardArguments args,
                           const __grid_constant__ BackwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tiles = WarpgroupTiles<kOf, kDim>;
  using Scores = Wgmma<kElement, Tiles::kRightRows>;
  using Sums = Wgmma<kElement, kDim>;
  constexpr bool kOfKeys = Tiles::kOfKeys;
  constexpr int kBlocks = Tiles::kRightRows / 8, kStages = Tiles::kStages;
  constexpr int kTurn = 1;
  extern __shared__ __align__(128) char shared[];
  allow_next_kernel();
  const Tiles tiles(shared);
  const BackwardWork<Tiles> work(args);
  const int group = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == Tiles::kGroups) {
    give_registers<24>();
    if (threadIdx.x % kWarpgroup == 0) copy_backward_tiles(tiles, work, args, maps);
    return;
  }

  take_registers<240>();
  const Problem& problem = args.pass.problem;
  const int lane = threadIdx.x % kWarp;
  const bool signals = threadIdx.x % kWarpgroup == 0;
  const int first_row = work.first_left + group * 64 +
                        static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16;  // of the warp
  const uint32_t own = group * 64 * kSwizzledRow;
  const uint32_t left_first = tile_descriptor(tiles.left[0] + own, Tiles::kLeftColumn);
  const uint32_t left_second = tile_descriptor(tiles.left[1] + own, Tiles::kLeftColumn);
  const uint32_t right = tile_descriptor(tiles.right, Tiles::kRightColumn);
  const auto await_turn = [&] { sync_named(kTurn + group, 2 * kWarpgroup); };
  const auto pass_turn = [&] { arrive_named(kTurn + 1 - group, 2 * kWarpgroup); };
  if (group == 1) pass_turn();

  float logsumexps[2] = {}, dots[2] = {};
  if constexpr (!kOfKeys) {
    wait_for_previous_kernel();
    const int64_t stat =
        (static_cast<int64_t>(work.batch) * problem.heads + work.head) * args.plan.padded_n +
        first_row + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      logsumexps[half] = args.logsumexp[stat + 8 * half];
      dots[half] = args.row_dots[stat + 8 * half];
    }
  }
  float sums[kDim / 8][4] = {}, dv[kDim / 8][4] = {};  // sums: of dK or dQ
  float scores[kBlocks][4], grads[kBlocks][4];
  uint32_t weights[kBlocks / 2][4], score_grads[kBlocks / 2][4];
  wait_barrier(tiles.here, 0);
  const int steps = (work.end_tile - work.first_tile) * work.right_heads;
  int tile = work.first_tile;
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages, parity = step / kStages % 2;
    const uint32_t right_first = right + (stage * Tiles::kStageBytes >> 4);
    const uint32_t right_second = right_first + (Tiles::kRightBytes >> 4);
    await_turn();
    wait_barrier(tiles.first_here + 8 * stage, parity);
    wgmma_fence();
    start_scores<Tiles, Scores, kDim>(scores, left_first, right_first);
    wait_barrier(tiles.second_here + 8 * stage, parity);
    wgmma_fence();
    start_scores<Tiles, Scores, kDim>(grads, left_second, right_second);
    pass_turn();

    const uint32_t stats = tiles.stage_stats(stage) + lane % 4 * 8;
    wgmma_wait<1>();
    pin_registers(scores);
    with_stats<kOfKeys>(scores, stats, logsumexps, [&](float& x, int, int, float logsumexp) {
      x = exp2_approx(fmaf(x, args.scale_log2, -logsumexp));
    });
    hide_scores<Tiles>(scores, problem, work, tile, first_row, lane);
    if constexpr (kOfKeys) {
      pack_fragments<kElement>(weights, scores);
      wgmma_fence();
      start_weighted_rows<Sums>(dv, weights, right_second);
    }
    wgmma_wait<kOfKeys ? 1 : 0>();
    pin_registers(grads);
    with_stats<kOfKeys>(grads, stats + Tiles::kStatBytes, dots,
                        [&](float& x, int j, int i, float dot) { x = scores[j][i] * (x - dot); });
    pack_fragments<kElement>(score_grads, grads);
    wgmma_fence();
    start_weighted_rows<Sums>(sums, score_grads, right_first);
    wgmma_wait<0>();
    if constexpr (kOfKeys) pin_registers(dv);
    pin_registers(sums);
    if (signals) arrive(tiles.free + 8 * stage);
    if (++tile == work.end_tile) tile = work.first_tile;
  }
  const auto put = [&](const Output& to, int64_t rows, const float(&c)[kDim / 8][4], float factor) {
    put_gradient<kElement, kDim>(to, work.batch, work.head, first_row, rows, problem.head_dim,
                                 factor, c, lane);
  };
  if constexpr (kOfKeys) {
    put(args.pass.grad_k, problem.m, sums, problem.scale);
    put(args.pass.grad_v, problem.m, dv, 1.0f);
  } else {
    put(args.pass.grad_q, problem.n, sums, problem.scale);
  }
#endif
}

// A kernel of these tiles for the blocks of its grid.
template <typename Tiles, auto kKernel>
cudaError_t launch_tiles(const BackwardArguments& args, cudaStream_t stream) {
  const Backward& pass = args.pass;
  const Problem& problem = pass.problem;
  BackwardMaps maps;
  CUtensorMap* const of_queries = Tiles::kOfKeys ? maps.right : maps.left;
  CUtensorMap* const of_keys = Tiles::kOfKeys ? maps.left : maps.right;
  const int query_rows = Tiles::kOfKeys ? Tiles::kRightRows : Tiles::kLeftRows;
  const int key_rows = Tiles::kOfKeys ? Tiles::kLeftRows : Tiles::kRightRows;
  for (int i = 0; i < 2; ++i) {
    cudaError_t error = map_rows(of_queries[i], problem, i == 0 ? pass.q : pass.grad_out,
                                 problem.heads, problem.n, query_rows);
    if (error == cudaSuccess)
      error = map_rows(of_keys[i], problem, i == 0 ? pass.k : pass.v, problem.kv_heads, problem.m,
                       key_rows);
    if (error != cudaSuccess) return error;
  }
  const BackwardGrid& grid = Tiles::kOfKeys ? args.plan.keys : args.plan.queries;
  return launch_after<kKernel>(dim3(static_cast<unsigned>(grid.blocks)), dim3(Tiles::kThreads),
                               Tiles::kBytes, stream, args, maps);
}

template <GradientsOf kOf, Element kElement, int kDim>
cudaError_t launch_backward_hopper(const BackwardArguments& args, cudaStream_t stream) {
  return launch_tiles<WarpgroupTiles<kOf, kDim>, backward_hopper_kernel<kOf, kElement, kDim>>(
      args, stream);
}

}  // namespace flashstep::attention_cuda
