// FlashAttention forward on Hopper: the same pass as forward_kernel.cuh, by warpgroups.
//
// One warp copies: the queries, then keys and values of a step into a ring, by TMA. Warpgroups of
// 64 queries each compute: scores from shared memory, weights in registers, out += weights v. The
// scores of a step are computed while the product of the step before with its values still runs, so
// that exponentials and products overlap. Source: Shah et al., "FlashAttention-3" (2024).
#pragma once

#include "flashstep/attention/cuda/element.cuh"
#include "flashstep/attention/cuda/forward_output.cuh"
#include "flashstep/attention/cuda/forward_softmax.cuh"
#include "flashstep/attention/cuda/forward_tile.h"
#include "flashstep/attention/cuda/forward_work.cuh"
#include "flashstep/attention/cuda/hopper.cuh"

namespace flashstep::attention_cuda {

// The arrays of a pass as TMA sees them, in boxes of a tile's rows and 64 columns.
struct ForwardMaps {
  CUtensorMap q, k, v;
};

// kWindow: as in forward_kernel.
template <Element kElement, int kDim, typename Planned, bool kWindow>
__global__ void __launch_bounds__(Planned::kTile.threads(), 1)
    forward_hopper_kernel(const __grid_constant__ ForwardArguments a,
                          const __grid_constant__ ForwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr ForwardTile kTile = Planned::kTile;
  constexpr int kRows = kTile.rows(), kKeys = kTile.keys, kStages = kTile.stages;
  constexpr int kGroups = kRows / 64;
  constexpr int kColumns = (kDim + kSwizzledColumns - 1) / kSwizzledColumns;             // of 64
  constexpr int kQueryColumn = kRows * kSwizzledRow, kKeyColumn = kKeys * kSwizzledRow;  // bytes
  constexpr int kQueryBytes = kColumns * kQueryColumn, kKeyBytes = kColumns * kKeyColumn;
  constexpr int kScoreBlocks = kKeys / 8, kOutBlocks = kDim / 8;
  constexpr int kTurn = 1, kSign = kTurn + kGroups;  // named barriers of each warpgroup
  using Scores = Wgmma<kElement, kKeys>;
  using Values = Wgmma<kElement, kDim>;

  __shared__ ForwardWork work_here;  // of the queries that are there
  extern __shared__ __align__(128) char shared[];
  const uint32_t q_tile =
      (shared_address(shared) + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes;
  const uint32_t k_tiles = q_tile + kQueryBytes;
  const uint32_t v_tiles = k_tiles + kStages * kKeyBytes;
  const uint32_t q_here = v_tiles + kStages * kKeyBytes;  // barriers of 8 bytes
  const uint32_t q_free = q_here + 8;
  const uint32_t k_here = q_free + 8, v_here = k_here + 8 * kStages;
  const uint32_t k_free = v_here + 8 * kStages, v_free = k_free + 8 * kStages;

  allow_next_kernel();
  const int group = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (threadIdx.x == 0) {
    init_barrier(q_here, 1);
    init_barrier(q_free, 4 * kGroups);
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(k_here + 8 * stage, 1);
      init_barrier(v_here + 8 * stage, 1);
      init_barrier(k_free + 8 * stage, kGroups);
      init_barrier(v_free + 8 * stage, kGroups);
    }
    fence_barriers();
  }
  __syncthreads();

  if (group == kGroups) {
    give_registers<kGroups == 3 ? 32 : 24>();
    if (threadIdx.x % kWarpgroup != 0) return;
    const int heads_of_key = static_cast<int>(a.pass.problem.heads / a.pass.problem.kv_heads);
    ForwardTurns turns(tiles_of(a), blockIdx.x, gridDim.x);
    TileOfHead at;
    int tile = 0, step = 0;  // of all that the block takes
    while (turns.next(at)) {
      const ForwardWork work = make_work<kWindow>(a, at.head, at.row_tile, at.split);
      if (a.splits > 1 && work.first_key >= work.end_key) continue;
      wait_barrier(q_free, tile++ % 2 ^ 1);
      work_here = work;
      arrive_expecting(q_here, kQueryBytes);
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        copy_tile(q_tile + c * kQueryColumn, maps.q, c * kSwizzledColumns, work.first_row,
                  work.head, work.batch, q_here);
      for (int key = work.first_key; key < work.end_key; key += kKeys, ++step) {
        const int stage = step % kStages;
        const auto copy = [&](const CUtensorMap& map, uint32_t tiles, uint32_t here,
                              uint32_t free) {
          wait_barrier(free + 8 * stage, step / kStages % 2 ^ 1);
          arrive_expecting(here + 8 * stage, kKeyBytes);
#pragma unroll
          for (int c = 0; c < kColumns; ++c)
            copy_tile(tiles + stage * kKeyBytes + c * kKeyColumn, map, c * kSwizzledColumns, key,
                      work.head / heads_of_key, work.batch, here + 8 * stage);
        };
        copy(maps.k, k_tiles, k_here, k_free);
        copy(maps.v, v_tiles, v_here, v_free);
      }
    }
    wait_barrier(q_free, tile % 2 ^ 1);
    work_here.batch = -1;  // no more
    arrive(q_here);
    return;
  }

  take_registers<kGroups == 3 ? 160 : 240>();
  const int lane = threadIdx.x % kWarp;
  const bool signals = threadIdx.x % kWarpgroup == 0;
  const uint32_t q_descriptor = tile_descriptor(q_tile + group * 64 * kSwizzledRow, kQueryColumn);
  const uint32_t k_descriptor = tile_descriptor(k_tiles, kKeyColumn);
  const uint32_t v_descriptor = tile_descriptor(v_tiles, kKeyColumn);

  // Warpgroups start their products in turns, so that the others' exponentials run beside them.
  const auto await_turn = [&] { sync_named(kTurn + group, 2 * kWarpgroup); };
  const auto pass_turn = [&] { arrive_named(kTurn + (group + 1) % kGroups, 2 * kWarpgroup); };
  if (group == kGroups - 1) pass_turn();

  int first_step = 0;
  for (int tile = 0;; ++tile) {
    wait_barrier(q_here, tile % 2);
    const ForwardWork work = work_here;
    __syncwarp();  // all lanes have it before the first arrives at q_free
    if (work.batch < 0) return;
    const int steps = (work.end_key - work.first_key + kKeys - 1) / kKeys;
    const int first_row = work.first_row + 64 * group;
    const int row = first_row + static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16 + lane / 4;
    float scores[1][kScoreBlocks][4];
    float out[1][kOutBlocks][4] = {};
    uint32_t weights[kKeys / 16][4];
    float factor[1][2];
    RowState<1> state;

    const auto start_scores = [&](int step) {
      const int stage = (first_step + step) % kStages;
      wait_barrier(k_here + 8 * stage, (first_step + step) / kStages % 2);
      wgmma_fence();
      start_rows_product<Scores, kDim>(scores[0], q_descriptor, kQueryColumn,
                                       k_descriptor + (stage * kKeyBytes >> 4), kKeyColumn);
    };
    const auto start_values = [&](int step) {
      const int stage = (first_step + step) % kStages;
      wait_barrier(v_here + 8 * stage, (first_step + step) / kStages % 2);
      wgmma_fence();
      start_weighted_rows<Values>(out[0], weights, v_descriptor + (stage * kKeyBytes >> 4));
    };
    const auto free_stage = [&](uint32_t barriers, int step) {
      if (signals) arrive(barriers + 8 * ((first_step + step) % kStages));
    };
    // Scores become weights, still float32; whether scale_out() must follow.
    const auto soften = [&](int step) {
      const int key = work.first_key + step * kKeys;
      mask_scores<kKeys, kWindow>(scores, a, work.batch, first_row, first_row + 63, key, row);
      const bool grown = move_references(scores, state, factor, a.scale_log2);
      weigh_scores(scores, state, a.scale_log2);
      return grown;
    };

    if (a.query_and != ~0u || a.query_xor != 0) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const uint32_t rows = q_tile + c * kQueryColumn + group * 64 * kSwizzledRow;
        for (int i = threadIdx.x % kWarpgroup * 4; i < 64 * kSwizzledRow; i += kWarpgroup * 4)
          store_shared(rows + i, (load_shared(rows + i) & a.query_and) ^ a.query_xor);
      }
      fence_async_proxy();
      sync_named(kSign + group, kWarpgroup);
    }
    if (steps > 0) {
      start_scores(0);
      wgmma_wait<0>();
      pin_registers(scores[0]);
      free_stage(k_free, 0);
      if (steps == 1 && lane == 0) arrive(q_free);
      soften(0);
      pack_fragments<kElement>(weights, scores[0]);
      for (int step = 1; step < steps; ++step) {
        await_turn();
        start_scores(step);
        start_values(step - 1);
        pass_turn();
        wgmma_wait<1>();
        pin_registers(scores[0]);
        free_stage(k_free, step);
        if (step == steps - 1 && lane == 0) arrive(q_free);
        const bool grown = soften(step);
        wgmma_wait<0>();
        pin_registers(out[0]);
        free_stage(v_free, step - 1);
        if (grown) scale_out(out, factor);
        pack_fragments<kElement>(weights, scores[0]);
      }
      start_values(steps - 1);
      wgmma_wait<0>();
      pin_registers(out[0]);
      free_stage(v_free, steps - 1);
    } else if (lane == 0) {
      arrive(q_free);
    }
    if (a.splits == 1) {
      write_rows<kElement, kWindow>(a, work, row, state, out);
    } else {
      write_partial_rows(a, work, row, state, out);
    }
    first_step += steps;
  }
#endif
}

}  // namespace flashstep::attention_cuda
