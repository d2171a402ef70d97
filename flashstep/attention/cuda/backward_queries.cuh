// The second of two backward passes: dQ = scale dS k. A block keeps its queries and steps over
// keys; rows of the scores are queries, so that dS goes from registers into the product with the
// keys.
#pragma once

#include "flashstep/attention/cuda/backward_plan.h"
#include "flashstep/attention/cuda/backward_products.cuh"
#include "flashstep/attention/cuda/backward_sums.cuh"
#include "flashstep/attention/cuda/head_rows.cuh"

namespace flashstep::attention_cuda {

template <Arithmetic kArithmetic, int kDim>
struct QueriesShape {
  static constexpr QueriesTile kTile = queries_tile(kArithmetic, kDim);
  using Math = Fragments<kArithmetic>;
  using QueryRows = Tile<Math::kBytes, kTile.queries, kDim>;
  using KeyRows = Tile<Math::kBytes, kTile.keys, kDim>;
  static constexpr int kThreads = threads(kTile);
  // dQ of a warp: 16 kRows queries, 8 kColumns columns; scores of kGroup keys at a time.
  static constexpr int kRows = kTile.queries / (kMmaRows * kTile.warps);
  static constexpr int kColumns = kDim / kMmaColumns;
  static constexpr int kGroup = kTile.keys < 64 / kRows ? kTile.keys : 64 / kRows;
  static_assert(kRows >= 1 && kGroup % 16 == 0);

  // Shared memory, bytes from the start: Q, dO, then stages of K and V.
  static constexpr int kGradsAt = QueryRows::kBytes;
  static constexpr int kStagesAt = 2 * QueryRows::kBytes;
  static constexpr int kStageBytes = 2 * KeyRows::kBytes;
  static_assert(kStagesAt + kTile.stages * kStageBytes == shared_bytes(kTile, kArithmetic, kDim));
};

// The work of a block: steps begin..end - 1 (tiles of keys) of a tile of queries.
struct QueriesWork {
  int64_t batch, head, tile, chunk;
  int begin, end;
};

template <typename Shape>
__device__ inline bool find_work(const BackwardArguments& args, QueriesWork& work) {
  const Problem& problem = args.pass.problem;
  const BackwardGrid& grid = args.plan.queries;
  int64_t index = blockIdx.x;
  const int64_t head_of_section = index % grid.section_heads;
  index /= grid.section_heads;
  work.chunk = args.first_chunk + index % grid.wave_chunks;
  index /= grid.wave_chunks;
  work.tile = grid.tiles - 1 - index % grid.tiles;  // under a causal mask the last has most steps
  const int64_t head = index / grid.tiles * grid.section_heads + head_of_section;
  if (head >= grid.heads) return false;
  work.batch = head / problem.heads;
  work.head = head % problem.heads;
  constexpr QueriesTile kTile = Shape::kTile;
  const int64_t steps = query_tile_steps(problem, kTile, work.tile);
  const int64_t begin = work.chunk * grid.chunk_steps;
  const int64_t end = begin + grid.chunk_steps < steps ? begin + grid.chunk_steps : steps;
  work.begin = static_cast<int>(begin);
  work.end = static_cast<int>(end);
  // Where results come at once, a block writes zeros for queries that see no key.
  return begin < end || (work.chunk == 0 && args.plan.q_slices == 0);
}

// logsumexp and D of the rows that this lane holds in C fragments.
template <typename Shape>
struct RowStats {
  float logsumexp[2 * Shape::kRows];
  float dot[2 * Shape::kRows];
};

// dS from S and dP, into `grads`. Row r of the lane sees the keys of the group before end_key[r].
template <typename Shape, int kColumns>
__device__ inline void score_gradients(const float (&scores)[Shape::kRows][kColumns][4],
                                       float (&grads)[Shape::kRows][kColumns][4],
                                       const RowStats<Shape>& stats, bool masked,
                                       const int (&end_key)[2 * Shape::kRows], float scale_log2,
                                       int lane) {
#pragma unroll
  for (int row = 0; row < Shape::kRows; ++row)
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = 2 * row + i / 2;
        float p = exp2_approx(scores[row][column][i] * scale_log2 - stats.logsumexp[r]);
        if (masked && column * kMmaColumns + lane % 4 * 2 + i % 2 >= end_key[r]) p = 0;
        grads[row][column][i] = p * (grads[row][column][i] - stats.dot[r]);
      }
}

template <Arithmetic kArithmetic, int kDim>
__global__ void __launch_bounds__(QueriesShape<kArithmetic, kDim>::kThreads)
    backward_queries_kernel(const __grid_constant__ BackwardArguments args) {
  using Shape = QueriesShape<kArithmetic, kDim>;
  using Math = typename Shape::Math;
  constexpr QueriesTile kTile = Shape::kTile;
  extern __shared__ __align__(128) char shared_memory[];
  allow_next_kernel();
  QueriesWork work;
  if (!find_work<Shape>(args, work)) return;
  const Problem& problem = args.pass.problem;
  const uint32_t shared = shared_address(shared_memory);
  const auto lane =
      make_lane<typename Shape::KeyRows, typename Shape::KeyRows>(threadIdx.x % kWarp);
  const int warp_row = __shfl_sync(kFullWarp, threadIdx.x / kWarp, 0) * Shape::kRows * kMmaRows;
  const int64_t first_query = work.tile * kTile.queries;
  const int64_t key_head = work.head / (problem.heads / problem.kv_heads);

  load_tile<typename Shape::QueryRows, Shape::kThreads>(
      shared,
      head_rows<Math::kBytes>(args.pass.q, work.batch, work.head, problem.n, problem.head_dim),
      first_query, threadIdx.x);
  load_tile<typename Shape::QueryRows, Shape::kThreads>(
      shared + Shape::kGradsAt,
      head_rows<Math::kBytes>(args.pass.grad_out, work.batch, work.head, problem.n,
                              problem.head_dim),
      first_query, threadIdx.x);
  const auto load = [&](int step) {
    const uint32_t stage = shared + Shape::kStagesAt + step % kTile.stages * Shape::kStageBytes;
    load_tile<typename Shape::KeyRows, Shape::kThreads>(
        stage,
        head_rows<Math::kBytes>(args.pass.k, work.batch, key_head, problem.m, problem.head_dim),
        static_cast<int64_t>(step) * kTile.keys, threadIdx.x);
    load_tile<typename Shape::KeyRows, Shape::kThreads>(
        stage + Shape::KeyRows::kBytes,
        head_rows<Math::kBytes>(args.pass.v, work.batch, key_head, problem.m, problem.head_dim),
        static_cast<int64_t>(step) * kTile.keys, threadIdx.x);
    cp_async_commit();
  };
  if (kTile.stages == 2 && work.begin < work.end) load(work.begin);

  wait_for_previous_kernel();  // for the row statistics
  RowStats<Shape> stats;
  const int64_t stat_row =
      (work.batch * problem.heads + work.head) * args.plan.padded_n + first_query;
#pragma unroll
  for (int r = 0; r < 2 * Shape::kRows; ++r) {
    const int64_t row = stat_row + warp_row + lane.index / 4 + 8 * r;
    stats.logsumexp[r] = args.logsumexp[row];
    stats.dot[r] = args.row_dots[row];
  }

  SharedRows<Math, typename Shape::QueryRows, Lane<Shape::KeyRows::kRowBytes>, kDim, Shape::kRows>
      queries, query_grads;
  queries.load(shared + warp_row * Shape::QueryRows::kRowBytes, lane);
  query_grads.load(shared + Shape::kGradsAt + warp_row * Shape::QueryRows::kRowBytes, lane);
  float dq[Shape::kRows][Shape::kColumns][4] = {};
  for (int step = work.begin; step < work.end; ++step) {
    // All warps are done with the stage where the next step comes.
    if (kTile.stages == 1) {
      __syncthreads();
      load(step);
    }
    cp_async_wait<0>();
    __syncthreads();
    if (kTile.stages == 2 && step + 1 < work.end) load(step + 1);

    const uint32_t k = shared + Shape::kStagesAt + step % kTile.stages * Shape::kStageBytes;
#pragma unroll 1
    for (int group = 0; group < kTile.keys; group += Shape::kGroup) {
      constexpr int kGroupColumns = Shape::kGroup / kMmaColumns;
      const int64_t first_key = static_cast<int64_t>(step) * kTile.keys + group;
      const int64_t last_key = first_key + Shape::kGroup - 1;
      const bool masked =
          last_key >= problem.m || (problem.causal && last_key > first_query + problem.diagonal);
      int end_key[2 * Shape::kRows];
#pragma unroll
      for (int r = 0; r < 2 * Shape::kRows; ++r) {
        int64_t end = problem.m - first_key;
        const int64_t seen =
            first_query + warp_row + lane.index / 4 + 8 * r + problem.diagonal + 1 - first_key;
        if (problem.causal && seen < end) end = seen;
        end_key[r] = static_cast<int>(end < 0 ? 0 : end > Shape::kGroup ? Shape::kGroup : end);
      }
      float scores[Shape::kRows][kGroupColumns][4];
      float grads[Shape::kRows][kGroupColumns][4];
      const uint32_t group_at = k + group * Shape::KeyRows::kRowBytes;
      multiply_rows<Math, typename Shape::KeyRows, kDim>(scores, queries, group_at, lane);
      multiply_rows<Math, typename Shape::KeyRows, kDim>(grads, query_grads,
                                                         group_at + Shape::KeyRows::kBytes, lane);
      score_gradients<Shape>(scores, grads, stats, masked, end_key, args.scale_log2, lane.index);
#pragma unroll
      for (int i = 0; i < kGroupColumns / Math::kDepthBlocks; ++i) {
        typename Math::Fragment left[Shape::kRows];
#pragma unroll
        for (int row = 0; row < Shape::kRows; ++row) {
          uint32_t r[4];
          Math::registers_of_scores(r, &grads[row][i * Math::kDepthBlocks]);
          left[row] = Math::prepare(r);
        }
        multiply_columns<Math, typename Shape::KeyRows>(dq, left, group_at, i * Math::kDepth, 0,
                                                        lane);
      }
    }
  }

  const int64_t row = first_query + warp_row;
  const bool add = args.first_chunk > 0;
  if (args.plan.q_slices > 0) {
    put_sums(args.q_sums + (work.chunk - args.first_chunk) * args.plan.q_slice +
                 (work.batch * problem.heads + work.head) * args.plan.padded_n * kDim +
                 sum_block(row, 0, kDim),
             kDim, dq, lane.index, add);
  } else {
    put_rows<Math::kElement>(head_data<Math::kBytes>(args.pass.grad_q, work.batch, work.head),
                             args.pass.grad_q.strides.row * Math::kBytes, row, problem.n, 0,
                             problem.head_dim, problem.scale, dq, lane.index, add,
                             {args.pass.cos, args.pass.sin});
  }
}

}  // namespace flashstep::attention_cuda
