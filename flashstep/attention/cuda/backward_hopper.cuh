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

#include "flashstep/attention/cuda/backward_hopper_tiles.cuh"
#include "flashstep/attention/cuda/backward_sums.cuh"
#include "flashstep/attention/cuda/head_rows.cuh"
#include "flashstep/attention/cuda/launch.cuh"
#include "flashstep/attention/cuda/tensor_map.h"

namespace flashstep::attention_cuda {

// left (64 rows of this warpgroup) right^T: the scores of a step.
template <typename Tiles, typename Product, int kDim, int kBlocks>
__device__ inline void start_scores(float (&c)[kBlocks][4], uint32_t left, uint32_t right) {
  start_rows_product<Product, kDim>(c, left, Tiles::kLeftColumn, right, Tiles::kRightColumn);
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

// Weights of the pairs of a step that the mask hides are 0, and those of keys beyond the last: of
// zeros a weight of exp(-logsumexp), which may overflow, would come. first_row: the warp's first.
template <typename Tiles, int kBlocks>
__device__ inline void hide_scores(float (&weights)[kBlocks][4], const Problem& problem,
                                   const BackwardWork<Tiles>& work, int tile, int first_row,
                                   int lane) {
  constexpr bool kOfKeys = Tiles::kOfKeys, kWindow = Tiles::kWindow;
  const int first_right = tile * Tiles::kRightRows;
  const int diagonal = static_cast<int>(problem.diagonal), keys = static_cast<int>(problem.m);
  const int window = static_cast<int>(problem.window);
  const int first_key = kOfKeys ? work.first_left : first_right;
  const int first_query = kOfKeys ? first_right : work.first_left;
  const int end_key = first_key + (kOfKeys ? Tiles::kLeftRows : Tiles::kRightRows);
  const int end_query = first_query + (kOfKeys ? Tiles::kRightRows : Tiles::kLeftRows);
  const bool has_documents = kWindow && problem.documents != nullptr;
  // Under a causal mask a document begins before the queries of its keys, and ends behind the keys
  // of its queries.
  const bool begins = has_documents && !(kOfKeys && problem.causal);
  const bool ends = has_documents && (kOfKeys || !problem.causal);
  bool all_visible = end_key - 1 <= first_query + diagonal && end_key <= keys &&
                     (!kWindow || first_key > end_query - 1 + diagonal - window);
  const int last_left = min(work.first_left + Tiles::kLeftRows, keys) - 1;
  if (begins) all_visible &= document_of(problem, work.batch, last_left).begin <= first_right;
  if (ends)
    all_visible &=
        first_right + Tiles::kRightRows <= document_of(problem, work.batch, work.first_left).end;
  if (all_visible) return;
  // Of a key's row the queries that see it; of a query's the keys that it sees.
  int begin[2], end[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int left_at = first_row + lane / 4 + 8 * half;
    if constexpr (kOfKeys) {
      begin[half] = left_at < keys ? left_at - diagonal : INT_MAX;
      end[half] = left_at - diagonal + window;
    } else {
      end[half] = min(keys, left_at + diagonal + 1);
      begin[half] = left_at + diagonal + 1 - window;
    }
    const int here = min(left_at, keys - 1);
    if (begins)
      begin[half] =
          max(begin[half], static_cast<int>(document_of(problem, work.batch, here).begin));
    if (ends)
      end[half] = min(end[half], static_cast<int>(document_of(problem, work.batch, here).end));
  }
  const int column = first_right + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int right_at = column + 8 * j + i % 2;
      if ((kWindow || kOfKeys) && right_at < begin[i / 2]) weights[j][i] = 0;
      if ((kWindow || !kOfKeys) && right_at >= end[i / 2]) weights[j][i] = 0;
    }
  }
}

// Sums of 64 rows of a warpgroup to their gradient.
template <Element kElement, int kDim>
__device__ inline void put_gradient(const Output& to, int64_t batch, int64_t head, int first_row,
                                    int64_t rows, int columns, float factor,
                                    const float (&sums)[kDim / 8][4], int lane,
                                    const RowRotation& rotation = {}) {
  constexpr int kBytes = element_bytes(kElement);
  put_rows<kElement, 1, kDim / 8>(head_data<kBytes>(to, batch, head), to.strides.row * kBytes,
                                  first_row, rows, 0, columns, factor,
                                  reinterpret_cast<const float(&)[1][kDim / 8][4]>(sums), lane,
                                  /*add=*/false, rotation);
}

// kTurned: of rows that rope has turned. They have a kernel of their own: with one for both,
// attention alone was about 1 % slower. kWindow: with a window, or documents.
template <GradientsOf kOf, Element kElement, int kDim, bool kTurned, bool kWindow>
__global__ void __launch_bounds__(WarpgroupTiles<kOf, kDim>::kThreads, 1)
    backward_hopper_kernel(const __grid_constant__ BackwardArguments args,
                           const __grid_constant__ BackwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tiles = WarpgroupTiles<kOf, kDim, kWindow>;
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
  const auto put = [&](const Output& to, int64_t rows, const float(&c)[kDim / 8][4], float factor,
                       const RowRotation& rotation) {
    put_gradient<kElement, kDim>(to, work.batch, work.head, first_row, rows, problem.head_dim,
                                 factor, c, lane, rotation);
  };
  const RowRotation rotation = kTurned ? RowRotation{args.pass.cos, args.pass.sin} : RowRotation();
  if constexpr (kOfKeys) {
    put(args.pass.grad_k, problem.m, sums, problem.scale, rotation);
    put(args.pass.grad_v, problem.m, dv, 1.0f, {});
  } else {
    put(args.pass.grad_q, problem.n, sums, problem.scale, rotation);
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

// launch.operator()<kTurned, kWindow>() for this pass.
template <typename Launch>
cudaError_t launch_for_rows(const BackwardArguments& args, const Launch& launch) {
  const Problem& problem = args.pass.problem;
  const bool has_window = attention_kernel::has_window(problem) || problem.documents != nullptr;
  if (args.pass.cos == nullptr)
    return has_window ? launch.template operator()<false, true>()
                      : launch.template operator()<false, false>();
  return has_window ? launch.template operator()<true, true>()
                    : launch.template operator()<true, false>();
}

template <GradientsOf kOf, Element kElement, int kDim>
cudaError_t launch_backward_hopper(const BackwardArguments& args, cudaStream_t stream) {
  return launch_for_rows(args, [&]<bool kTurned, bool kWindow>() {
    return launch_tiles<WarpgroupTiles<kOf, kDim, kWindow>,
                        backward_hopper_kernel<kOf, kElement, kDim, kTurned, kWindow>>(args,
                                                                                       stream);
  });
}

}  // namespace flashstep::attention_cuda
