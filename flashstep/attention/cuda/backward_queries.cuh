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

// The work of a block: tiles of keys begin..end - 1 of a tile of queries.
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
  const int64_t first_query = work.tile * kTile.queries;
  const Range tiles =
      key_tiles(problem, work.batch, first_query, first_query + kTile.queries, kTile.keys);
  const int64_t begin = tiles.begin + work.chunk * grid.chunk_steps;
  const int64_t end = begin + grid.chunk_steps < tiles.end ? begin + grid.chunk_steps : tiles.end;
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

// P from S, in place.
template <typename Shape, int kColumns>
__device__ inline void probabilities(float (&scores)[Shape::kRows][kColumns][4],
                                     const RowStats<Shape>& stats, float scale_log2) {
#pragma unroll
  for (int row = 0; row < Shape::kRows; ++row)
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scores[row][column][i] =
            exp2_approx(scores[row][column][i] * scale_log2 - stats.logsumexp[2 * row + i / 2]);
}

// Whether some query of the block must not see some key of a group.
template <typename Shape>
__device__ inline bool needs_mask(const Problem& problem, int64_t batch, int64_t first_query,
                                  int64_t first_key) {
  const int64_t last_key = first_key + Shape::kGroup - 1;
  const int64_t last_query = first_query + Shape::kTile.queries - 1;
  if (problem.documents != nullptr) {
    const int64_t last_there = at_most(last_query, problem.n - 1);
    if (first_key < document_of(problem, batch, last_there).begin ||
        last_key >= document_of(problem, batch, first_query).end)
      return true;
  }
  return last_key >= problem.m ||
         (problem.causal && (last_key > first_query + problem.diagonal ||
                             first_key + problem.window <= last_query + problem.diagonal));
}

// P = 0 for hidden pairs: `query` and `key` are those of the lane's first number.
template <typename Shape, int kColumns>
__device__ inline void hide_scores(float (&scores)[Shape::kRows][kColumns][4],
                                   const Problem& problem, int64_t batch, int64_t query,
                                   int64_t key) {
#pragma unroll
  for (int half = 0; half < 2 * Shape::kRows; ++half) {
    // Counted from `key`, these are seen.
    const int behind = static_cast<int>(query + problem.diagonal + 1 - key) + 8 * half;
    int begin = behind - static_cast<int>(problem.window);
    int end = min(behind, static_cast<int>(problem.m - key));
    if (problem.documents != nullptr) {
      const Range document = document_of(problem, batch, at_most(query + 8 * half, problem.n - 1));
      begin = max(begin, static_cast<int>(document.begin - key));
      end = min(end, static_cast<int>(document.end - key));
    }
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (column * kMmaColumns + i < begin || column * kMmaColumns + i >= end)
          scores[half / 2][column][half % 2 * 2 + i] = 0;
  }
}

// dS = P o (dP - D), in place of dP.
template <typename Shape, int kColumns>
__device__ inline void score_gradients(const float (&scores)[Shape::kRows][kColumns][4],
                                       float (&grads)[Shape::kRows][kColumns][4],
                                       const RowStats<Shape>& stats) {
#pragma unroll
  for (int row = 0; row < Shape::kRows; ++row)
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        grads[row][column][i] =
            scores[row][column][i] * (grads[row][column][i] - stats.dot[2 * row + i / 2]);
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
  if (!find_work<Shape>(args, work)) {
    wait_for_previous_kernel();  // who waits for this kernel means those before it, too
    return;
  }
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
      float scores[Shape::kRows][kGroupColumns][4];
      float grads[Shape::kRows][kGroupColumns][4];
      const uint32_t group_at = k + group * Shape::KeyRows::kRowBytes;
      multiply_rows<Math, typename Shape::KeyRows, kDim>(scores, queries, group_at, lane);
      multiply_rows<Math, typename Shape::KeyRows, kDim>(grads, query_grads,
                                                         group_at + Shape::KeyRows::kBytes, lane);
      probabilities<Shape>(scores, stats, args.scale_log2);
      if (needs_mask<Shape>(problem, work.batch, first_query, first_key))
        hide_scores<Shape>(scores, problem, work.batch, first_query + warp_row + lane.index / 4,
                           first_key + lane.index % 4 * 2);
      score_gradients<Shape>(scores, grads, stats);
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
