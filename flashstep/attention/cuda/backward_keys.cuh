// The backward pass over tiles of keys: dK and dV, and in one pass dQ too.
//
// With S = scale q k^T, P = exp(S - logsumexp), dP = dO v^T and dS = P o (dP - D):
//   dV = P^T dO, dK = scale dS^T q, dQ = scale dS k.
// A block keeps its keys and steps over queries. Scores are computed transposed (rows are keys): in
// that form the C fragments of P^T and dS^T are the A fragments of the next two products. dS^T goes
// through shared memory for dQ, whose rows are queries.
// Source: Dao, "FlashAttention-2" (2023), algorithm 2.
#pragma once

#include <type_traits>

#include "flashstep/attention/cuda/backward_plan.h"
#include "flashstep/attention/cuda/backward_products.cuh"
#include "flashstep/attention/cuda/backward_rows.cuh"
#include "flashstep/attention/cuda/backward_sums.cuh"

namespace flashstep::attention_cuda {

// The largest divisor of `number` that is at most `most`.
constexpr int divisor(int number, int most) {
  while (number % most != 0) --most;
  return most;
}

template <Arithmetic kArithmetic, int kDim, Room kRoom>
struct KeysShape {
  static constexpr KeysTile kTile = keys_tile(kArithmetic, kDim, kRoom);
  using Math = Fragments<kArithmetic>;
  using KeyRows = Tile<Math::kBytes, kTile.keys, kDim>;
  using QueryRows = Tile<Math::kBytes, kTile.queries, kDim>;
  using ScoreRows = Tile<Math::kBytes, kTile.keys, kTile.queries>;  // P^T, dS^T
  static constexpr int kWarps = kTile.key_warps * kTile.column_warps;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr bool kShared = kTile.column_warps > 1;  // scores pass through shared memory

  // dK and dV of a warp: 16 kRows keys, 8 kColumns columns.
  static constexpr int kRows = kTile.keys / (kMmaRows * kTile.key_warps);
  static constexpr int kColumns = kDim / (kMmaColumns * kTile.column_warps);
  // Queries whose scores a warp computes, kGroup at a time; where 16 are more than its part, the
  // last warps have none.
  static constexpr int kWarpQueries =
      kTile.queries / kTile.column_warps < 16 ? 16 : kTile.queries / kTile.column_warps;
  static constexpr int kGroup = kWarpQueries < kTile.group ? kWarpQueries : kTile.group;
  // dQ of a warp: 16 kQueryRows queries, 8 kQueryColumns columns, near a square; with few columns
  // some warps have none.
  static constexpr int kQueryWarps =
      kTile.queries >= 32 ? (kDim == 16 && kTile.queries >= 64 ? 4 : 2) : 1;
  static constexpr int kColumnWarps = divisor(kDim / 16, kWarps / kQueryWarps);
  static constexpr int kQueryRows = kTile.queries / (kMmaRows * kQueryWarps);
  static constexpr int kQueryColumns = kDim / (kMmaColumns * kColumnWarps);
  using LaneType = Lane<KeyRows::kRowBytes>;
  using RowsOfKeys =
      std::conditional_t<kTile.resident, ResidentRows<Math, KeyRows, LaneType, kDim, kRows>,
                         SharedRows<Math, KeyRows, LaneType, kDim, kRows>>;
  static_assert(kRows >= 1 && kColumns % 2 == 0 && kQueryRows >= 1 && kQueryColumns % 2 == 0);

  // Shared memory, bytes from the start; ends where shared_bytes() says.
  static constexpr int kKeysAt = 0;
  static constexpr int kValuesAt = KeyRows::kBytes;
  static constexpr int kScoreGradsAt = 2 * KeyRows::kBytes;
  static constexpr int kScoresAt = kScoreGradsAt + (kShared ? ScoreRows::kBytes : 0);
  static constexpr int kStagesAt = kScoresAt + ScoreRows::kBytes;
  static constexpr int kGradsAt = QueryRows::kBytes;  // in a stage: Q, dO; the row statistics last
  static constexpr int kStageBytes = 2 * QueryRows::kBytes;
  static constexpr int kStatsAt = kStagesAt + kTile.stages * kStageBytes;
  static constexpr int kStatBytes = kTile.queries * kRowStatBytes;
  static_assert(kStatsAt + kTile.stages * kStatBytes == shared_bytes(kTile, kArithmetic, kDim));
};

// The work of a block: steps begin..end - 1 of a tile of a key head. Step s takes a tile of queries
// of query head s / head_steps of the group.
struct KeysWork {
  int64_t batch, head, tile;
  int first_query_tile, head_steps;
  int begin, end;
};

template <typename Shape>
__device__ inline bool find_work(const BackwardArguments& args, KeysWork& work) {
  const Problem& problem = args.pass.problem;
  const BackwardGrid& grid = args.plan.keys;
  int64_t index = blockIdx.x;
  const int64_t head_of_section = index % grid.section_heads;
  index /= grid.section_heads;
  const int64_t chunk = index % grid.chunks;
  index /= grid.chunks;
  work.tile = index % grid.tiles;
  const int64_t head = index / grid.tiles * grid.section_heads + head_of_section;
  if (head >= grid.heads) return false;
  work.batch = head / problem.kv_heads;
  work.head = head % problem.kv_heads;
  work.first_query_tile = static_cast<int>(
      first_query_tile(problem, work.tile * Shape::kTile.keys, Shape::kTile.queries));
  work.head_steps =
      static_cast<int>(ceil_div(problem.n, Shape::kTile.queries)) - work.first_query_tile;
  const int64_t steps = work.head_steps * (problem.heads / problem.kv_heads);
  const int64_t begin = chunk * grid.chunk_steps;
  const int64_t end = begin + grid.chunk_steps < steps ? begin + grid.chunk_steps : steps;
  work.begin = static_cast<int>(begin);
  work.end = static_cast<int>(end);
  return begin < end || grid.chunks == 1;  // alone, a block writes zeros for keys that no one sees
}

// Where a step's queries are, and the stage that holds them.
struct StepPosition {
  int head, query_tile, stage;
};

// What the steps of a query head load from.
struct HeadSources {
  RowSource q, grad_out;
  int64_t stats;  // row of the statistics' first query
};

template <typename Shape>
__device__ inline HeadSources head_sources(const BackwardArguments& args, int64_t batch, int head) {
  const Problem& problem = args.pass.problem;
  return {
      head_rows<Shape::Math::kBytes>(args.pass.q, batch, head, problem.n, problem.head_dim),
      head_rows<Shape::Math::kBytes>(args.pass.grad_out, batch, head, problem.n, problem.head_dim),
      (batch * problem.heads + head) * args.plan.padded_n};
}

// Starts the copies of a step's Q, dO and row statistics.
template <typename Shape>
__device__ inline void load_step(const BackwardArguments& args, const HeadSources& sources,
                                 uint32_t shared, const StepPosition& position) {
  constexpr int kQueries = Shape::kTile.queries;
  const int64_t first_query = static_cast<int64_t>(position.query_tile) * kQueries;
  const uint32_t rows = shared + Shape::kStagesAt + position.stage * Shape::kStageBytes;
  load_tile<typename Shape::QueryRows, Shape::kThreads>(rows, sources.q, first_query, threadIdx.x);
  load_tile<typename Shape::QueryRows, Shape::kThreads>(rows + Shape::kGradsAt, sources.grad_out,
                                                        first_query, threadIdx.x);
  constexpr int kChunks = kQueries * 4 / kChunkBytes;
  static_assert(2 * kChunks <= Shape::kThreads);
  if (threadIdx.x < 2 * kChunks) {
    const float* const stat = threadIdx.x < kChunks ? args.logsumexp : args.row_dots;
    cp_async_16(
        shared + Shape::kStatsAt + position.stage * Shape::kStatBytes + threadIdx.x * kChunkBytes,
        stat + sources.stats + first_query + threadIdx.x % kChunks * 4, true);
  }
}

// Whether some query of a step must not see some key of the block.
template <typename Shape>
__device__ inline bool needs_mask(const Problem& problem, int64_t first_key, int64_t first_query) {
  const int64_t end_key = first_key + Shape::kTile.keys;
  return end_key > problem.m || (problem.causal && first_query + problem.diagonal < end_key - 1);
}

// P = 0 for hidden pairs: `key` and `query` are those of the lane's first number.
template <typename Shape, int kColumns>
__device__ inline void hide_scores(float (&scores)[Shape::kRows][kColumns][4],
                                   const Problem& problem, int64_t key, int64_t query) {
#pragma unroll
  for (int half = 0; half < 2 * Shape::kRows; ++half) {
    // From this one on (counted from `query`) the queries see the key.
    int64_t first = problem.causal ? key + 8 * half - problem.diagonal - query : 0;
    if (key + 8 * half >= problem.m || first > Shape::kGroup) first = Shape::kGroup;
    const int first_query = static_cast<int>(first < 0 ? 0 : first);
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (column * kMmaColumns + i < first_query) scores[half / 2][column][half % 2 * 2 + i] = 0;
  }
}

// P from S, in place; `stats` is the address of the logsumexp of the lane's first query.
template <typename Shape, int kColumns>
__device__ inline void probabilities(float (&scores)[Shape::kRows][kColumns][4], float scale_log2,
                                     uint32_t stats) {
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const uint2 logsumexp = load_shared_pair(stats + column * kMmaColumns * 4);
#pragma unroll
    for (int row = 0; row < Shape::kRows; ++row)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scores[row][column][i] =
            exp2_approx(scores[row][column][i] * scale_log2 -
                        __uint_as_float(i % 2 == 0 ? logsumexp.x : logsumexp.y));
  }
}

// dS = P o (dP - D), in place of dP.
template <typename Shape, int kColumns>
__device__ inline void score_gradients(const float (&scores)[Shape::kRows][kColumns][4],
                                       float (&grads)[Shape::kRows][kColumns][4], uint32_t stats) {
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const uint2 dots = load_shared_pair(stats + (Shape::kTile.queries + column * kMmaColumns) * 4);
#pragma unroll
    for (int row = 0; row < Shape::kRows; ++row)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        grads[row][column][i] =
            scores[row][column][i] *
            (grads[row][column][i] - __uint_as_float(i % 2 == 0 ? dots.x : dots.y));
  }
}

// dK and dV of the warp += the scores of `group` queries, from registers. What others need goes to
// shared memory on the way: dS for dQ, and both where the warp has a part of the columns.
template <typename Shape, bool kKeepGrads, int kGroupColumns>
__device__ inline void add_from_registers(float (&dk)[Shape::kRows][Shape::kColumns][4],
                                          float (&dv)[Shape::kRows][Shape::kColumns][4],
                                          const float (&scores)[Shape::kRows][kGroupColumns][4],
                                          const float (&grads)[Shape::kRows][kGroupColumns][4],
                                          uint32_t q, uint32_t grad_out, uint32_t shared_scores,
                                          uint32_t shared_grads, int group, int first_column,
                                          const typename Shape::LaneType& lane) {
  using Math = typename Shape::Math;
  using QueryRows = typename Shape::QueryRows;
  using ScoreRows = typename Shape::ScoreRows;
#pragma unroll
  for (int step = 0; step < kGroupColumns / Math::kDepthBlocks; ++step) {
    typename Math::Fragment left[Shape::kRows];
    const int query = group + step * Math::kDepth;
    uint32_t r[4];
#pragma unroll
    for (int row = 0; row < Shape::kRows; ++row) {
      Math::registers_of_scores(r, &scores[row][step * Math::kDepthBlocks]);
      left[row] = Math::prepare(r);
      if constexpr (Shape::kShared)
        Math::template store_scores<ScoreRows>(r, shared_scores, 16 * row, query, lane);
    }
    multiply_columns<Math, QueryRows>(dv, left, grad_out, query, first_column, lane);
#pragma unroll
    for (int row = 0; row < Shape::kRows; ++row) {
      Math::registers_of_scores(r, &grads[row][step * Math::kDepthBlocks]);
      left[row] = Math::prepare(r);
      if constexpr (kKeepGrads)
        Math::template store_scores<ScoreRows>(r, shared_grads, 16 * row, query, lane);
    }
    multiply_columns<Math, QueryRows>(dk, left, q, query, first_column, lane);
  }
}

// dK or dV of the warp += scores of its keys by other warps, from shared memory, times rows of Q or
// dO; its own queries begin at `own`.
template <typename Shape>
__device__ inline void add_from_shared(float (&c)[Shape::kRows][Shape::kColumns][4],
                                       uint32_t scores, uint32_t rows, int own, int first_column,
                                       const typename Shape::LaneType& lane) {
  using Math = typename Shape::Math;
  // A warp without scores of its own (`own` is beyond the step) takes all, others skip the first.
  constexpr bool kAllHaveOwn =
      Shape::kWarpQueries * Shape::kTile.column_warps == Shape::kTile.queries;
#pragma unroll
  for (int part = kAllHaveOwn ? Shape::kWarpQueries : 0; part < Shape::kTile.queries;
       part += Shape::kWarpQueries) {
    if (!kAllHaveOwn && part == 0 && own < Shape::kTile.queries) continue;
    const int first_query = (own + part) % Shape::kTile.queries;
#pragma unroll
    for (int step = 0; step < Shape::kWarpQueries; step += Math::kDepth) {
      const int query = first_query + step;
      typename Math::Fragment left[Shape::kRows];
#pragma unroll
      for (int row = 0; row < Shape::kRows; ++row)
        left[row] = Math::template a_of_rows_paired<typename Shape::ScoreRows>(scores, 16 * row,
                                                                               query, lane);
      multiply_columns<Math, typename Shape::QueryRows>(c, left, rows, query, first_column, lane);
    }
  }
}

// dQ of the step, all keys of the block: added to the sums at `sums` of the step's first query.
template <typename Shape, int kDim>
__device__ inline void add_query_grads(float* sums, uint32_t shared, int warp,
                                       const typename Shape::LaneType& lane) {
  using Math = typename Shape::Math;
  const int query = warp / Shape::kColumnWarps * Shape::kQueryRows * kMmaRows;
  const int first_column = warp % Shape::kColumnWarps * Shape::kQueryColumns * kMmaColumns;
  if (query >= Shape::kTile.queries) return;
  float dq[Shape::kQueryRows][Shape::kQueryColumns][4] = {};
#pragma unroll
  for (int key = 0; key < Shape::kTile.keys; key += Math::kDepth) {
    typename Math::Fragment left[Shape::kQueryRows];
#pragma unroll
    for (int row = 0; row < Shape::kQueryRows; ++row)
      left[row] = Math::template a_of_columns<typename Shape::ScoreRows>(
          shared + Shape::kScoreGradsAt, key, query + 16 * row, lane);
    multiply_columns<Math, typename Shape::KeyRows>(dq, left, shared + Shape::kKeysAt, key,
                                                    first_column, lane);
  }
  put_sums<true>(sums + sum_block(query, first_column, kDim), kDim, dq, lane.index);
}

// dK and dV of the warp, to the results or to the sums in the workspace.
template <typename Shape, int kDim, bool kOnePass>
__device__ inline void finish_keys(const BackwardArguments& args, const KeysWork& work,
                                   const float (&dk)[Shape::kRows][Shape::kColumns][4],
                                   const float (&dv)[Shape::kRows][Shape::kColumns][4], int key_row,
                                   int first_column, const typename Shape::LaneType& lane) {
  constexpr Element kElement = Shape::Math::kElement;
  const Problem& problem = args.pass.problem;
  const int64_t first_key = work.tile * Shape::kTile.keys + key_row;
  if (args.plan.k_slices > 0) {
    const int64_t slice = kOnePass ? 0 : work.begin / args.plan.keys.chunk_steps;
    const int64_t at = slice * args.plan.k_slice +
                       (work.batch * problem.kv_heads + work.head) * args.plan.padded_m * kDim +
                       sum_block(first_key, first_column, kDim);
    put_sums<kOnePass>(args.k_sums + at, kDim, dk, lane.index);
    put_sums<kOnePass>(args.v_sums + at, kDim, dv, lane.index);
    return;
  }
  constexpr int kBytes = Shape::Math::kBytes;
  put_rows<kElement>(head_data<kBytes>(args.pass.grad_k, work.batch, work.head),
                     args.pass.grad_k.strides.row * kBytes, first_key, problem.m, first_column,
                     problem.head_dim, problem.scale, dk, lane.index);
  put_rows<kElement>(head_data<kBytes>(args.pass.grad_v, work.batch, work.head),
                     args.pass.grad_v.strides.row * kBytes, first_key, problem.m, first_column,
                     problem.head_dim, 1.0f, dv, lane.index);
}

template <Arithmetic kArithmetic, int kDim, Room kRoom, bool kOnePass>
__global__ void __launch_bounds__(KeysShape<kArithmetic, kDim, kRoom>::kThreads,
                                  KeysShape<kArithmetic, kDim, kRoom>::kTile.blocks)
    backward_keys_kernel(const __grid_constant__ BackwardArguments args) {
  using Shape = KeysShape<kArithmetic, kDim, kRoom>;
  using Math = typename Shape::Math;
  constexpr KeysTile kTile = Shape::kTile;
  extern __shared__ __align__(128) char shared_memory[];
  allow_next_kernel();
  KeysWork work;
  if (!find_work<Shape>(args, work)) return;
  const Problem& problem = args.pass.problem;
  const uint32_t shared = shared_address(shared_memory);
  // The same in all lanes, as the compiler sees from lane 0's.
  const int warp = __shfl_sync(kFullWarp, threadIdx.x / kWarp, 0);
  const auto lane =
      make_lane<typename Shape::KeyRows, typename Shape::ScoreRows>(threadIdx.x % kWarp);
  const int key_row = warp % kTile.key_warps * Shape::kRows * kMmaRows;
  const int column_warp = warp / kTile.key_warps;
  const int first_column = column_warp * Shape::kColumns * kMmaColumns;
  const int warp_query = column_warp * Shape::kWarpQueries;
  const int64_t first_key = work.tile * kTile.keys;
  const int64_t group_heads = problem.heads / problem.kv_heads;
  const int query_tiles = work.first_query_tile + work.head_steps;

  load_tile<typename Shape::KeyRows, Shape::kThreads>(
      shared + Shape::kKeysAt,
      head_rows<Math::kBytes>(args.pass.k, work.batch, work.head, problem.m, problem.head_dim),
      first_key, threadIdx.x);
  load_tile<typename Shape::KeyRows, Shape::kThreads>(
      shared + Shape::kValuesAt,
      head_rows<Math::kBytes>(args.pass.v, work.batch, work.head, problem.m, problem.head_dim),
      first_key, threadIdx.x);
  wait_for_previous_kernel();  // for the row statistics
  StepPosition next = {};      // the step to load
  if (work.begin < work.end)
    next = {static_cast<int>(work.head * group_heads) + work.begin / work.head_steps,
            work.first_query_tile + work.begin % work.head_steps, 0};
  HeadSources sources = head_sources<Shape>(args, work.batch, next.head);
  const auto load = [&] {
    load_step<Shape>(args, sources, shared, next);
    cp_async_commit();
    if (++next.query_tile == query_tiles) {
      next.query_tile = work.first_query_tile;
      sources = head_sources<Shape>(args, work.batch, ++next.head);
    }
    next.stage = (next.stage + 1) % kTile.stages;
  };
  StepPosition at = next;  // the step to compute
  if (kTile.stages == 2 && work.begin < work.end) load();

  typename Shape::RowsOfKeys keys, values;
  if (kTile.resident) {
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
  }
  keys.load(shared + Shape::kKeysAt + key_row * Shape::KeyRows::kRowBytes, lane);
  values.load(shared + Shape::kValuesAt + key_row * Shape::KeyRows::kRowBytes, lane);

  float dk[Shape::kRows][Shape::kColumns][4] = {};
  float dv[Shape::kRows][Shape::kColumns][4] = {};
  for (int step = work.begin; step < work.end; ++step) {
    // All warps are done with the step before: its scores, and its stage where the next comes.
    if (kTile.stages == 1) {
      __syncthreads();
      load();
    }
    const StepPosition coming = next;
    cp_async_wait<0>();
    __syncthreads();
    if (kTile.stages == 2 && step + 1 < work.end) load();

    const uint32_t q = shared + Shape::kStagesAt + at.stage * Shape::kStageBytes;
    const uint32_t grad_out = q + Shape::kGradsAt;
    const uint32_t warp_scores = shared + Shape::kScoresAt + key_row * Shape::ScoreRows::kRowBytes;
    const uint32_t warp_grads =
        shared + Shape::kScoreGradsAt + key_row * Shape::ScoreRows::kRowBytes;
    const int64_t first_query = static_cast<int64_t>(at.query_tile) * kTile.queries;
    const bool masked = needs_mask<Shape>(problem, first_key, first_query);
    if (warp_query < kTile.queries) {
#pragma unroll
      for (int group = warp_query; group < warp_query + Shape::kWarpQueries;
           group += Shape::kGroup) {
        constexpr int kGroupColumns = Shape::kGroup / kMmaColumns;
        float scores[Shape::kRows][kGroupColumns][4];
        float grads[Shape::kRows][kGroupColumns][4];
        const uint32_t group_at = group * Shape::QueryRows::kRowBytes;
        multiply_rows<Math, typename Shape::QueryRows, kDim>(scores, keys, q + group_at, lane);
        multiply_rows<Math, typename Shape::QueryRows, kDim>(grads, values, grad_out + group_at,
                                                             lane);
        const int query = group + lane.index % 4 * 2;
        const uint32_t stats = shared + Shape::kStatsAt + at.stage * Shape::kStatBytes + query * 4;
        probabilities<Shape>(scores, args.scale_log2, stats);
        if (masked)
          hide_scores<Shape>(scores, problem, first_key + key_row + lane.index / 4,
                             first_query + query);
        score_gradients<Shape>(scores, grads, stats);
        add_from_registers<Shape, kOnePass || Shape::kShared>(
            dk, dv, scores, grads, q, grad_out, warp_scores, warp_grads, group, first_column, lane);
      }
    }
    if (Shape::kShared || kOnePass) __syncthreads();
    if constexpr (Shape::kShared) {
      add_from_shared<Shape>(dv, warp_scores, grad_out, warp_query, first_column, lane);
      add_from_shared<Shape>(dk, warp_grads, q, warp_query, first_column, lane);
    }
    if constexpr (kOnePass) {
      float* const sums =
          args.q_sums +
          ((work.batch * problem.heads + at.head) * args.plan.padded_n + first_query) * kDim;
      add_query_grads<Shape, kDim>(sums, shared, warp, lane);
    }
    at = coming;
  }
  finish_keys<Shape, kDim, kOnePass>(args, work, dk, dv, key_row, first_column, lane);
}

}  // namespace flashstep::attention_cuda
