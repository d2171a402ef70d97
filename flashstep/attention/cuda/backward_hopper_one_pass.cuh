// The backward pass on Hopper in one pass, by warpgroups: five products a step where two passes
// (backward_hopper.cuh) make seven, and weights computed once.
//
// A block owns 128 keys and steps over tiles of queries, from the last to the first. Two warpgroups
// of 64 keys compute scores, weights and their gradients as in the pass over keys. The gradients of
// scores then meet in shared memory: each warpgroup takes all 128 keys for its half of dQ, a step
// later, so that neither waits for the other. Halves are staged in shared memory, and bulk copies
// add them to float32 sums (backward_sums.cuh) in L2.
//
// Where bits must repeat, the blocks of a head add to a tile's sums in the order of their keys; a
// counter of every tile says whose turn it is. A block waits for blocks of a lower index alone.
// These have started: CUDA does not promise it, but GPUs start blocks in the order of their index,
// on which CUB's scans rely, too. All meet the tiles of a head in the same order, so that each runs
// about a step behind the one before and seldom waits.
#pragma once

#include "flashstep/attention/cuda/backward_hopper.cuh"

namespace flashstep::attention_cuda {

// A warp's fragment of 16 rows and 16 columns to a swizzled tile; `row` is where the row lane % 16
// of them starts. columns: before the fragment, of this row of 64.
__device__ inline void store_fragment(uint32_t row, int columns, const uint32_t (&x)[4], int lane) {
  const uint32_t at = row + ((columns / 8 + lane / 16) ^ lane % 8) * 16;
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
               "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

__device__ inline void store_shared(uint32_t at, const float (&x)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
}

// Until the blocks before have added.
__device__ inline void await_turn_of_sum(const int* turn, int own) {
  int now;
  do {
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  } while (now != own);
}
__device__ inline void pass_turn_of_sum(int* turn, int own) {
  fence_bulk_writes();
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(turn), "r"(own + 1) : "memory");
}

// Adds staged parts of dQ to their sums. Adders take steps in turns: one waits for its turn and its
// result while the next ones' steps are computed.
template <typename Tiles, int kDim>
__device__ inline void add_query_gradients(const Tiles& tiles, const BackwardWork<Tiles>& work,
                                           const BackwardArguments& args, int adder) {
  const bool ordered = args.plan.ordered;
  const Problem& problem = args.pass.problem;
  int own = work.first_left / Tiles::kLeftRows;  // of the blocks that add, how many come before
  wait_for_previous_kernel();
  for_each_step(work, [&](int step, int head, int tile) {
    if (step % Tiles::kAdders != adder) return;
    const int64_t first_row =
        (static_cast<int64_t>(work.batch) * problem.heads + head) * args.plan.padded_n +
        tile * Tiles::kRightRows;
    float* const sums = args.q_sums + first_row * kDim;
    int* const turn = args.turns + first_row / Tiles::kRightRows;
    if constexpr (Tiles::kWindow) {
      const int64_t first_seen = visible_keys(problem, work.batch, tile * Tiles::kRightRows).begin;
      own = (work.first_left - static_cast<int>(first_seen) / Tiles::kLeftRows * Tiles::kLeftRows) /
            Tiles::kLeftRows;
    }
    if (ordered) await_turn_of_sum(turn, own);
    wait_barrier(tiles.sums_here + 8 * adder, step / Tiles::kAdders % 2);
    if (ordered && own == 0)
      copy_bytes_out(sums, tiles.sums, Tiles::kSumBytes);
    else
      add_floats_out(sums, tiles.sums, Tiles::kSumBytes);
    await_reads_out();
    arrive(tiles.sums_free);
    await_writes_out();
    if (ordered) pass_turn_of_sum(turn, own);
  });
}

template <Element kElement, int kDim, bool kTurned, bool kWindow>
__global__ void __launch_bounds__(WarpgroupTiles<GradientsOf::kAll, kDim>::kThreads, 1)
    backward_one_pass_kernel(const __grid_constant__ BackwardArguments args,
                             const __grid_constant__ BackwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tiles = WarpgroupTiles<GradientsOf::kAll, kDim, kWindow>;
  using Scores = Wgmma<kElement, Tiles::kRightRows>;
  using Sums = Wgmma<kElement, kDim>;
  constexpr int kBlocks = Tiles::kRightRows / 8, kStages = Tiles::kStages;
  constexpr int kTurn = 1;
  // A warpgroup's half of a step's dQ is 64 queries, of 128, or 64 columns.
  constexpr bool kHalfOfQueries = Tiles::kRightRows == 128;
  static_assert(Tiles::kRightRows * kDim == 2 * 64 * 64);
  extern __shared__ __align__(128) char shared[];
  allow_next_kernel();
  const Tiles tiles(shared);
  const BackwardWork<Tiles> work(args);
  const int group = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const int lane = threadIdx.x % kWarp;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  if (group == Tiles::kGroups) {
    give_registers<24>();
    if (lane == 0 && warp == 0) copy_backward_tiles(tiles, work, args, maps);
    if (lane == 0 && warp > 0) add_query_gradients<Tiles, kDim>(tiles, work, args, warp - 1);
    return;
  }

  take_registers<240>();
  const Problem& problem = args.pass.problem;
  const bool signals = threadIdx.x % kWarpgroup == 0;
  const int first_row = work.first_left + group * 64 + warp * 16;  // of the warp
  const uint32_t own = group * 64 * kSwizzledRow;
  const uint32_t left_first = tile_descriptor(tiles.left[0] + own, Tiles::kLeftColumn);
  const uint32_t left_second = tile_descriptor(tiles.left[1] + own, Tiles::kLeftColumn);
  const uint32_t right = tile_descriptor(tiles.right, Tiles::kRightColumn);
  const uint32_t all_scores = tile_descriptor(
      tiles.scores + (kHalfOfQueries ? group * Tiles::kLeftColumn : 0), Tiles::kLeftColumn);
  const uint32_t all_keys = tile_descriptor(
      tiles.left[0] + (kHalfOfQueries ? 0 : group * Tiles::kLeftColumn), Tiles::kLeftColumn);
  const uint32_t own_scores = tiles.scores + own + (warp * 16 + lane % 16) * kSwizzledRow;
  const uint32_t own_sums =
      tiles.sums + lane * 16 +
      static_cast<uint32_t>(sum_block(16 * (warp + (kHalfOfQueries ? 4 * group : 0)),
                                      kHalfOfQueries ? 0 : 64 * group, kDim)) *
          4;
  const auto await_turn = [&] { sync_named(kTurn + group, 2 * kWarpgroup); };
  const auto pass_turn = [&] { arrive_named(kTurn + 1 - group, 2 * kWarpgroup); };
  if (group == 1) pass_turn();

  const auto start_query_gradients = [&](float(&dq)[8][4], int step) {
    const int buffer = step % 2;
    wgmma_fence();
    start_columns_product<Wgmma<kElement, 64>, Tiles::kLeftRows>(
        dq, all_scores + (buffer * Tiles::kScoreBytes >> 4), all_keys);
  };
  const auto stage_query_gradients = [&](const float(&dq)[8][4], int step) {
    if (signals) arrive(tiles.scores_free + 8 * (step % 2));
    wait_barrier(tiles.sums_free, step % 2 ^ 1);
#pragma unroll
    for (int j = 0; j < 8; ++j) store_shared(own_sums + j * kSumBlock * 4, dq[j]);
    fence_async_proxy();
    arrive(tiles.sums_here + step % Tiles::kAdders * 8);
  };

  float dk[kDim / 8][4] = {}, dv[kDim / 8][4] = {};
  float scores[kBlocks][4], grads[kBlocks][4];
  uint32_t weights[kBlocks / 2][4], score_grads[kBlocks / 2][4];
  const float no_rows[2] = {};
  wait_barrier(tiles.here, 0);
  const int steps = (work.end_tile - work.first_tile) * work.right_heads;
  if (steps > 0) {
    wait_barrier(tiles.first_here, 0);
    wgmma_fence();
    start_scores<Tiles, Scores, kDim>(scores, left_first, right);
    wgmma_wait<0>();
    pin_registers(scores);
  }
  int tile = work.end_tile - 1;
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages, buffer = step % 2;
    const uint32_t right_first = right + (stage * Tiles::kStageBytes >> 4);
    const uint32_t right_second = right_first + (Tiles::kRightBytes >> 4);
    wait_barrier(tiles.second_here + 8 * stage, step / kStages % 2);
    wgmma_fence();
    start_scores<Tiles, Scores, kDim>(grads, left_second, right_second);

    const uint32_t stats = tiles.stage_stats(stage) + lane % 4 * 8;
    with_stats<true>(scores, stats, no_rows, [&](float& x, int, int, float logsumexp) {
      x = exp2_approx(fmaf(x, args.scale_log2, -logsumexp));
    });
    hide_scores<Tiles>(scores, problem, work, tile, first_row, lane);
    pack_fragments<kElement>(weights, scores);
    wgmma_fence();
    start_weighted_rows<Sums>(dv, weights, right_second);
    wgmma_wait<1>();
    pin_registers(grads);
    with_stats<true>(grads, stats + Tiles::kStatBytes, no_rows,
                     [&](float& x, int j, int i, float dot) { x = scores[j][i] * (x - dot); });
    pack_fragments<kElement>(score_grads, grads);
    wait_barrier(tiles.scores_free + 8 * buffer, step / 2 % 2 ^ 1);
#pragma unroll
    for (int i = 0; i < kBlocks / 2; ++i)
      store_fragment(own_scores + buffer * Tiles::kScoreBytes + i / 4 * Tiles::kLeftColumn,
                     16 * i % 64, score_grads[i], lane);
    fence_async_proxy();
    arrive(tiles.scores_here + 8 * buffer);

    // The warpgroups take turns with the long products; meanwhile the other one computes weights.
    // The first step's dQ, of a step before, and the last one's next scores are made of what is
    // there, and dropped: a branch between products makes them wait for each other.
    await_turn();
    wgmma_fence();
    start_weighted_rows<Sums>(dk, score_grads, right_first);
    wait_barrier(tiles.scores_here + 8 * (buffer ^ 1), (step + 1) / 2 % 2 ^ 1);
    float dq[8][4];
    start_query_gradients(dq, step + 1);  // the buffer of the step before
    wgmma_wait<2>();
    pin_registers(dv);
    const int next = (step + 1) % kStages;
    if (step + 1 < steps) wait_barrier(tiles.first_here + 8 * next, (step + 1) / kStages % 2);
    wgmma_fence();
    start_scores<Tiles, Scores, kDim>(scores, left_first, right + (next * Tiles::kStageBytes >> 4));
    pass_turn();
    wgmma_wait<1>();
    pin_registers(dk);
    pin_registers(dq);
    if (signals) arrive(tiles.free + 8 * stage);
    if (step > 0) stage_query_gradients(dq, step - 1);
    wgmma_wait<0>();
    pin_registers(scores);
    if (--tile < work.first_tile) tile = work.end_tile - 1;
  }
  if (steps > 0) {
    const int last = steps - 1;
    wait_barrier(tiles.scores_here + 8 * (last % 2), last / 2 % 2);
    float dq[8][4];
    start_query_gradients(dq, last);
    wgmma_wait<0>();
    pin_registers(dq);
    stage_query_gradients(dq, last);
  }
  const auto put = [&](const Output& to, const float(&c)[kDim / 8][4], float factor,
                       const RowRotation& rotation) {
    put_gradient<kElement, kDim>(to, work.batch, work.head, first_row, problem.m, problem.head_dim,
                                 factor, c, lane, rotation);
  };
  put(args.pass.grad_k, dk, problem.scale,
      kTurned ? RowRotation{args.pass.cos, args.pass.sin} : RowRotation());
  put(args.pass.grad_v, dv, 1.0f, {});
#endif
}

template <Element kElement, int kDim>
cudaError_t launch_backward_one_pass(const BackwardArguments& args, cudaStream_t stream) {
  return launch_for_rows(args, [&]<bool kTurned, bool kWindow>() {
    return launch_tiles<WarpgroupTiles<GradientsOf::kAll, kDim, kWindow>,
                        backward_one_pass_kernel<kElement, kDim, kTurned, kWindow>>(args, stream);
  });
}

}  // namespace flashstep::attention_cuda
