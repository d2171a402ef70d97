// The backward pass on Hopper, by warpgroups, always in two passes: dK and dV, then dQ. Nothing is
// added across blocks, so bits repeat.
//
// Formulas and forms are those of backward_keys.cuh and backward_queries.cuh: scores whose
// accumulators are, without a way through shared memory, the left operands of the next products.
// One warp copies by TMA, two warpgroups of 64 keys (or queries) compute.
#pragma once

#include "flashstep/attention/cuda/backward_plan.h"
#include "flashstep/attention/cuda/backward_sums.cuh"
#include "flashstep/attention/cuda/head_rows.cuh"
#include "flashstep/attention/cuda/hopper.cuh"
#include "flashstep/attention/cuda/launch.cuh"
#include "flashstep/attention/cuda/tensor_map.h"

namespace flashstep::attention_cuda {

struct BackwardMaps {
  CUtensorMap q, grad_out, k, v;
};

// What both passes share: a block's own tiles (`left`: K and V, or Q and dO), the tiles of its
// steps
// (`right`), and the barriers.
template <int kDim, int kRightRows, int kRightStages>
struct WarpgroupTiles {
  static constexpr int kLeftRows = kWarpgroupRows, kGroups = kLeftRows / 64, kRight = kRightRows;
  static constexpr int kStages = kRightStages;
  static constexpr int kColumns = (kDim + kSwizzledColumns - 1) / kSwizzledColumns;
  static constexpr int kLeftColumn = kLeftRows * kSwizzledRow, kRightColumn = kRight * kSwizzledRow;
  static constexpr int kLeftBytes = kColumns * kLeftColumn, kRightBytes = kColumns * kRightColumn;
  static constexpr int kStatBytes = kRight * 4;
  static constexpr int kStageBytes = 2 * kRightBytes;
  static constexpr int kStatsAt = 2 * kLeftBytes + kStages * kStageBytes;
  static constexpr int kBarriersAt = kStatsAt + kStages * 2 * kStatBytes;
  static constexpr int kBytes = kBarriersAt + 8 * (1 + 3 * kStages) + kSwizzleBytes;
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;

  uint32_t left[2];
  uint32_t right;                          // first and second tile of a stage, stage after stage
  uint32_t stats;                          // logsumexp and D of a stage's queries
  uint32_t here;                           // left
  uint32_t first_here, second_here, free;  // by stage

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
    if (threadIdx.x == 0) {
      init_barrier(here, 1);
      for (int stage = 0; stage < kStages; ++stage) {
        init_barrier(first_here + 8 * stage, 1);
        init_barrier(second_here + 8 * stage, 1);
        init_barrier(free + 8 * stage, kGroups);
      }
      fence_barriers();
    }
    __syncthreads();
  }

  __device__ uint32_t stage_stats(int stage) const { return stats + stage * 2 * kStatBytes; }

  // The `rows` from `row` on of one head, into a tile.
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

template <Element kElement, int kDepth>
__device__ inline void pack_scores(uint32_t (&to)[kDepth][4], const float (&c)[2 * kDepth][4]) {
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      to[i][2 * j] = ElementTraits<kElement>::pack(c[2 * i + j][0], c[2 * i + j][1]);
      to[i][2 * j + 1] = ElementTraits<kElement>::pack(c[2 * i + j][2], c[2 * i + j][3]);
    }
  }
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

template <int kDim>
using KeyTilesOfWarpgroups =
    WarpgroupTiles<kDim, warpgroup_keys_tile(kDim).queries, warpgroup_keys_tile(kDim).stages>;

// dK and dV of 128 keys, in steps of queries.
template <Element kElement, int kDim>
__global__ void __launch_bounds__(KeyTilesOfWarpgroups<kDim>::kThreads, 1)
    backward_keys_hopper_kernel(const __grid_constant__ BackwardArguments args,
                                const __grid_constant__ BackwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tiles = KeyTilesOfWarpgroups<kDim>;
  using Scores = Wgmma<kElement, Tiles::kRight>;
  using Sums = Wgmma<kElement, kDim>;
  constexpr int kBlocks = Tiles::kRight / 8, kStages = Tiles::kStages;
  constexpr int kTurn = 1;
  extern __shared__ __align__(128) char shared[];
  allow_next_kernel();
  const Tiles tiles(shared);
  const Problem& problem = args.pass.problem;
  const TileOfHead work =
      tile_of_block(args.plan.keys, static_cast<int>(problem.kv_heads), /*last_first=*/false);
  const int group_heads = static_cast<int>(problem.heads / problem.kv_heads);
  const int first_key = work.tile * Tiles::kLeftRows;
  const int query_tiles = static_cast<int>(ceil_div(problem.n, Tiles::kRight));
  const int first_tile = static_cast<int>(first_query_tile(problem, first_key, Tiles::kRight));
  const int head_steps = query_tiles - first_tile;
  const int group = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kWarpgroup, 0);

  if (group == Tiles::kGroups) {
    give_registers<24>();
    if (threadIdx.x % kWarpgroup != 0) return;
    arrive_expecting(tiles.here, 2 * Tiles::kLeftBytes);
    Tiles::copy(tiles.left[0], Tiles::kLeftColumn, maps.k, first_key, work.head, work.batch,
                tiles.here);
    Tiles::copy(tiles.left[1], Tiles::kLeftColumn, maps.v, first_key, work.head, work.batch,
                tiles.here);
    wait_for_previous_kernel();
    int step = 0;
    for (int head = work.head * group_heads; head < (work.head + 1) * group_heads; ++head) {
      const int64_t stat_row =
          (static_cast<int64_t>(work.batch) * problem.heads + head) * args.plan.padded_n;
      for (int tile = first_tile; tile < query_tiles; ++tile, ++step) {
        const int stage = step % kStages, query = tile * Tiles::kRight;
        const uint32_t to = tiles.right + stage * Tiles::kStageBytes;
        const uint32_t stats = tiles.stage_stats(stage);
        wait_barrier(tiles.free + 8 * stage, step / kStages % 2 ^ 1);
        const uint32_t first = tiles.first_here + 8 * stage, second = tiles.second_here + 8 * stage;
        arrive_expecting(first, Tiles::kRightBytes + Tiles::kStatBytes);
        Tiles::copy(to, Tiles::kRightColumn, maps.q, query, head, work.batch, first);
        copy_bytes(stats, args.logsumexp + stat_row + query, Tiles::kStatBytes, first);
        arrive_expecting(second, Tiles::kRightBytes + Tiles::kStatBytes);
        Tiles::copy(to + Tiles::kRightBytes, Tiles::kRightColumn, maps.grad_out, query, head,
                    work.batch, second);
        copy_bytes(stats + Tiles::kStatBytes, args.row_dots + stat_row + query, Tiles::kStatBytes,
                   second);
      }
    }
    return;
  }

  take_registers<240>();
  const int lane = threadIdx.x % kWarp;
  const bool signals = threadIdx.x % kWarpgroup == 0;
  const int warp_row = group * 64 + static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16;
  const uint32_t own = group * 64 * kSwizzledRow;
  const uint32_t keys = tile_descriptor(tiles.left[0] + own, Tiles::kLeftColumn);
  const uint32_t values = tile_descriptor(tiles.left[1] + own, Tiles::kLeftColumn);
  const uint32_t right = tile_descriptor(tiles.right, Tiles::kRightColumn);
  const auto await_turn = [&] { sync_named(kTurn + group, 2 * kWarpgroup); };
  const auto pass_turn = [&] { arrive_named(kTurn + 1 - group, 2 * kWarpgroup); };
  if (group == 1) pass_turn();

  float dk[kDim / 8][4] = {}, dv[kDim / 8][4] = {};
  float scores[kBlocks][4], grads[kBlocks][4];
  uint32_t weights[kBlocks / 2][4], score_grads[kBlocks / 2][4];
  wait_barrier(tiles.here, 0);
  const int steps = head_steps * group_heads;
  int tile = first_tile;
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages, parity = step / kStages % 2;
    const uint32_t queries = right + (stage * Tiles::kStageBytes >> 4);
    const uint32_t out_grads = queries + (Tiles::kRightBytes >> 4);
    await_turn();
    wait_barrier(tiles.first_here + 8 * stage, parity);
    wgmma_fence();
    start_scores<Tiles, Scores, kDim>(scores, keys, queries);
    wait_barrier(tiles.second_here + 8 * stage, parity);
    wgmma_fence();
    start_scores<Tiles, Scores, kDim>(grads, values, out_grads);
    pass_turn();

    const uint32_t stats = tiles.stage_stats(stage) + lane % 4 * 8;
    wgmma_wait<1>();
    pin_registers(scores);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const uint2 pair = load_shared_pair(stats + 32 * j);
      const float logsumexp[2] = {__uint_as_float(pair.x), __uint_as_float(pair.y)};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scores[j][i] = exp2_approx(fmaf(scores[j][i], args.scale_log2, -logsumexp[i % 2]));
    }
    const int first_query = tile * Tiles::kRight;
    if (problem.causal && first_key + Tiles::kLeftRows - 1 > first_query + problem.diagonal) {
      const int key = first_key + warp_row + lane / 4;
      const int query = first_query + lane % 4 * 2 + static_cast<int>(problem.diagonal);
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (key + i / 2 * 8 > query + 8 * j + i % 2) scores[j][i] = 0;
        }
      }
    }
    pack_scores<kElement>(weights, scores);
    wgmma_fence();
    start_weighted_rows<Sums>(dv, weights, out_grads);
    wgmma_wait<1>();
    pin_registers(grads);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const uint2 pair = load_shared_pair(stats + Tiles::kStatBytes + 32 * j);
      const float dots[2] = {__uint_as_float(pair.x), __uint_as_float(pair.y)};
#pragma unroll
      for (int i = 0; i < 4; ++i) grads[j][i] = scores[j][i] * (grads[j][i] - dots[i % 2]);
    }
    pack_scores<kElement>(score_grads, grads);
    wgmma_fence();
    start_weighted_rows<Sums>(dk, score_grads, queries);
    wgmma_wait<0>();
    pin_registers(dv);
    pin_registers(dk);
    if (signals) arrive(tiles.free + 8 * stage);
    if (++tile == query_tiles) tile = first_tile;
  }
  constexpr int kBytes = element_bytes(kElement);
  const int64_t first_row = first_key + warp_row;
  const auto put = [&](const Output& to, const float(&sums)[kDim / 8][4], float factor) {
    put_rows<kElement, 1, kDim / 8>(
        head_data<kBytes>(to, work.batch, work.head), to.strides.row * kBytes, first_row, problem.m,
        0, problem.head_dim, factor, reinterpret_cast<const float(&)[1][kDim / 8][4]>(sums), lane,
        /*add=*/false);
  };
  put(args.pass.grad_k, dk, problem.scale);
  put(args.pass.grad_v, dv, 1.0f);
#endif
}

template <int kDim>
using QueryTilesOfWarpgroups =
    WarpgroupTiles<kDim, warpgroup_queries_tile(kDim).keys, warpgroup_queries_tile(kDim).stages>;

// dQ of 128 queries, in steps of keys.
template <Element kElement, int kDim>
__global__ void __launch_bounds__(QueryTilesOfWarpgroups<kDim>::kThreads, 1)
    backward_queries_hopper_kernel(const __grid_constant__ BackwardArguments args,
                                   const __grid_constant__ BackwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tiles = QueryTilesOfWarpgroups<kDim>;
  using Scores = Wgmma<kElement, Tiles::kRight>;
  using Sums = Wgmma<kElement, kDim>;
  constexpr int kBlocks = Tiles::kRight / 8, kStages = Tiles::kStages;
  constexpr int kTurn = 1;
  extern __shared__ __align__(128) char shared[];
  allow_next_kernel();
  const Tiles tiles(shared);
  const Problem& problem = args.pass.problem;
  const TileOfHead work =
      tile_of_block(args.plan.queries, static_cast<int>(problem.heads), /*last_first=*/true);
  const int first_query = work.tile * Tiles::kLeftRows;
  const int64_t last = min(first_query + Tiles::kLeftRows, static_cast<int>(problem.n)) - 1;
  const int steps = static_cast<int>(visible_key_tiles(problem, last, Tiles::kRight));
  const int group = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kWarpgroup, 0);

  if (group == Tiles::kGroups) {
    give_registers<24>();
    if (threadIdx.x % kWarpgroup != 0) return;
    const int kv_head = work.head / static_cast<int>(problem.heads / problem.kv_heads);
    arrive_expecting(tiles.here, 2 * Tiles::kLeftBytes);
    Tiles::copy(tiles.left[0], Tiles::kLeftColumn, maps.q, first_query, work.head, work.batch,
                tiles.here);
    Tiles::copy(tiles.left[1], Tiles::kLeftColumn, maps.grad_out, first_query, work.head,
                work.batch, tiles.here);
    for (int step = 0; step < steps; ++step) {
      const int stage = step % kStages;
      const uint32_t to = tiles.right + stage * Tiles::kStageBytes;
      wait_barrier(tiles.free + 8 * stage, step / kStages % 2 ^ 1);
      const uint32_t first = tiles.first_here + 8 * stage, second = tiles.second_here + 8 * stage;
      arrive_expecting(first, Tiles::kRightBytes);
      Tiles::copy(to, Tiles::kRightColumn, maps.k, step * Tiles::kRight, kv_head, work.batch,
                  first);
      arrive_expecting(second, Tiles::kRightBytes);
      Tiles::copy(to + Tiles::kRightBytes, Tiles::kRightColumn, maps.v, step * Tiles::kRight,
                  kv_head, work.batch, second);
    }
    return;
  }

  take_registers<240>();
  wait_for_previous_kernel();
  const int lane = threadIdx.x % kWarp;
  const bool signals = threadIdx.x % kWarpgroup == 0;
  const int warp_row = group * 64 + static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16;
  const int row = first_query + warp_row + lane / 4;
  const uint32_t own = group * 64 * kSwizzledRow;
  const uint32_t queries = tile_descriptor(tiles.left[0] + own, Tiles::kLeftColumn);
  const uint32_t out_grads = tile_descriptor(tiles.left[1] + own, Tiles::kLeftColumn);
  const uint32_t right = tile_descriptor(tiles.right, Tiles::kRightColumn);
  const auto await_turn = [&] { sync_named(kTurn + group, 2 * kWarpgroup); };
  const auto pass_turn = [&] { arrive_named(kTurn + 1 - group, 2 * kWarpgroup); };
  if (group == 1) pass_turn();
  float logsumexp[2], dots[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t stat =
        (static_cast<int64_t>(work.batch) * problem.heads + work.head) * args.plan.padded_n + row +
        8 * h;
    logsumexp[h] = args.logsumexp[stat];
    dots[h] = args.row_dots[stat];
  }

  float dq[kDim / 8][4] = {};
  float scores[kBlocks][4], grads[kBlocks][4];
  uint32_t score_grads[kBlocks / 2][4];
  wait_barrier(tiles.here, 0);
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages, parity = step / kStages % 2;
    const uint32_t keys = right + (stage * Tiles::kStageBytes >> 4);
    const uint32_t values = keys + (Tiles::kRightBytes >> 4);
    await_turn();
    wait_barrier(tiles.first_here + 8 * stage, parity);
    wgmma_fence();
    start_scores<Tiles, Scores, kDim>(scores, queries, keys);
    wait_barrier(tiles.second_here + 8 * stage, parity);
    wgmma_fence();
    start_scores<Tiles, Scores, kDim>(grads, out_grads, values);
    pass_turn();
    wgmma_wait<1>();
    pin_registers(scores);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scores[j][i] = exp2_approx(fmaf(scores[j][i], args.scale_log2, -logsumexp[i / 2]));
    }
    const int first_key = step * Tiles::kRight;
    if (problem.causal && first_key + Tiles::kRight - 1 > first_query + problem.diagonal) {
      const int key = first_key + lane % 4 * 2, seen = row + static_cast<int>(problem.diagonal);
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (key + 8 * j + i % 2 > seen + i / 2 * 8) scores[j][i] = 0;
        }
      }
    }
    wgmma_wait<0>();
    pin_registers(grads);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) grads[j][i] = scores[j][i] * (grads[j][i] - dots[i / 2]);
    }
    pack_scores<kElement>(score_grads, grads);
    wgmma_fence();
    start_weighted_rows<Sums>(dq, score_grads, keys);
    wgmma_wait<0>();
    pin_registers(dq);
    if (signals) arrive(tiles.free + 8 * stage);
  }
  constexpr int kBytes = element_bytes(kElement);
  put_rows<kElement, 1, kDim / 8>(head_data<kBytes>(args.pass.grad_q, work.batch, work.head),
                                  args.pass.grad_q.strides.row * kBytes, first_query + warp_row,
                                  problem.n, 0, problem.head_dim, problem.scale,
                                  reinterpret_cast<const float(&)[1][kDim / 8][4]>(dq), lane,
                                  /*add=*/false);
#endif
}

// The launches: with the maps of the tiles that a pass takes.
template <typename Tiles>
cudaError_t map_backward(BackwardMaps& maps, const Backward& pass, bool keys_are_left) {
  const auto& problem = pass.problem;
  const int query_rows = keys_are_left ? Tiles::kRight : Tiles::kLeftRows;
  const int key_rows = keys_are_left ? Tiles::kLeftRows : Tiles::kRight;
  cudaError_t error = map_rows(maps.q, problem, pass.q, problem.heads, problem.n, query_rows);
  if (error == cudaSuccess)
    error = map_rows(maps.grad_out, problem, pass.grad_out, problem.heads, problem.n, query_rows);
  if (error == cudaSuccess)
    error = map_rows(maps.k, problem, pass.k, problem.kv_heads, problem.m, key_rows);
  if (error == cudaSuccess)
    error = map_rows(maps.v, problem, pass.v, problem.kv_heads, problem.m, key_rows);
  return error;
}

template <Element kElement, int kDim>
cudaError_t launch_keys_hopper(const BackwardArguments& args, cudaStream_t stream) {
  using Tiles = KeyTilesOfWarpgroups<kDim>;
  BackwardMaps maps;
  const cudaError_t error = map_backward<Tiles>(maps, args.pass, /*keys_are_left=*/true);
  if (error != cudaSuccess) return error;
  return launch_after<backward_keys_hopper_kernel<kElement, kDim>>(
      dim3(static_cast<unsigned>(args.plan.keys.blocks)), dim3(Tiles::kThreads), Tiles::kBytes,
      stream, args, maps);
}

template <Element kElement, int kDim>
cudaError_t launch_queries_hopper(const BackwardArguments& args, cudaStream_t stream) {
  using Tiles = QueryTilesOfWarpgroups<kDim>;
  BackwardMaps maps;
  const cudaError_t error = map_backward<Tiles>(maps, args.pass, /*keys_are_left=*/false);
  if (error != cudaSuccess) return error;
  return launch_after<backward_queries_hopper_kernel<kElement, kDim>>(
      dim3(static_cast<unsigned>(args.plan.queries.blocks)), dim3(Tiles::kThreads), Tiles::kBytes,
      stream, args, maps);
}

}  // namespace flashstep::attention_cuda
