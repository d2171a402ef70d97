// The backward pass over tiles of keys: dK and dV, and in one pass dQ too.
//
// With S = scale q k^T, P = exp(S - logsumexp), dP = dO v^T and dS = P o (dP - D):
//   dV = P^T dO, dK = scale dS^T q, dQ = scale dS k.
// A block keeps its keys and steps over queries. Scores are computed transposed (rows are keys): in
// that form the C fragments of P^T and dS^T are the A fragments of the next two products. dS^T goes
// through shared memory for dQ, whose rows are queries.
// Source: Dao, "FlashAttention-2" (2023), algorithm 2.
#pragma once

#include "flashstep/attention/cuda/backward_keys_scores.cuh"
#include "flashstep/attention/cuda/backward_keys_steps.cuh"
#include "flashstep/attention/cuda/backward_plan.h"
#include "flashstep/attention/cuda/backward_products.cuh"
#include "flashstep/attention/cuda/backward_sums.cuh"

namespace flashstep::attention_cuda {

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

// Where a step's operands lie in shared memory; of the scores, the rows of the warp.
struct StepAddresses {
  uint32_t q, grad_out, stats, scores, score_grads;
};

template <typename Shape>
__device__ inline StepAddresses step_addresses(uint32_t shared, int stage, int key_row) {
  const uint32_t q = shared + Shape::kStagesAt + stage * Shape::kStageBytes;
  const uint32_t rows = key_row * Shape::ScoreRows::kRowBytes;
  return {q, q + Shape::kGradsAt, shared + Shape::kStatsAt + stage * Shape::kStatBytes,
          shared + Shape::kScoresAt + rows, shared + Shape::kScoreGradsAt + rows};
}

// The scores of kGroup queries with the warp's keys, and their part of dK and dV. `first_key`,
// `key`, `query`: the block's and the warp's first key, and the step's first query.
template <typename Shape, int kDim, bool kKeepGrads>
__device__ inline void take_group(float (&dk)[Shape::kRows][Shape::kColumns][4],
                                  float (&dv)[Shape::kRows][Shape::kColumns][4],
                                  const typename Shape::RowsOfKeys& keys,
                                  const typename Shape::RowsOfKeys& values, const StepAddresses& at,
                                  int group, int first_column, const typename Shape::LaneType& lane,
                                  const BackwardArguments& args, int batch, int64_t first_key,
                                  int64_t key, int64_t query) {
  using Math = typename Shape::Math;
  using QueryRows = typename Shape::QueryRows;
  constexpr int kGroupColumns = Shape::kGroup / kMmaColumns;
  float scores[Shape::kRows][kGroupColumns][4];
  float grads[Shape::kRows][kGroupColumns][4];
  const uint32_t group_at = group * QueryRows::kRowBytes;
  multiply_rows<Math, QueryRows, kDim>(scores, keys, at.q + group_at, lane);
  multiply_rows<Math, QueryRows, kDim>(grads, values, at.grad_out + group_at, lane);
  const int lane_query = group + lane.index % 4 * 2;
  const uint32_t stats = at.stats + lane_query * 4;
  probabilities<Shape>(scores, args.scale_log2, stats);
  hide_scores<Shape>(scores, args.pass.problem,
                     hidden_pairs<Shape>(args.pass.problem, first_key, query), batch,
                     key + lane.index / 4, query + lane_query);
  score_gradients<Shape>(scores, grads, stats);
  add_from_registers<Shape, kKeepGrads>(dk, dv, scores, grads, at.q, at.grad_out, at.scores,
                                        at.score_grads, group, first_column, lane);
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
  put_sums(sums + sum_block(query, first_column, kDim), kDim, dq, lane.index, /*add=*/true);
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
  const bool add = args.first_chunk > 0;
  if (args.plan.k_slices > 0) {
    const int64_t slice = kOnePass ? 0 : work.begin / args.plan.keys.chunk_steps - args.first_chunk;
    const int64_t at = slice * args.plan.k_slice +
                       (work.batch * problem.kv_heads + work.head) * args.plan.padded_m * kDim +
                       sum_block(first_key, first_column, kDim);
    put_sums(args.k_sums + at, kDim, dk, lane.index, kOnePass || add);
    put_sums(args.v_sums + at, kDim, dv, lane.index, kOnePass || add);
    return;
  }
  constexpr int kBytes = Shape::Math::kBytes;
  put_rows<kElement>(head_data<kBytes>(args.pass.grad_k, work.batch, work.head),
                     args.pass.grad_k.strides.row * kBytes, first_key, problem.m, first_column,
                     problem.head_dim, problem.scale, dk, lane.index, add,
                     {args.pass.cos, args.pass.sin});
  put_rows<kElement>(head_data<kBytes>(args.pass.grad_v, work.batch, work.head),
                     args.pass.grad_v.strides.row * kBytes, first_key, problem.m, first_column,
                     problem.head_dim, 1.0f, dv, lane.index, add);
}

template <Arithmetic kArithmetic, int kDim, SharedMemoryTier kTier, bool kOnePass>
__global__ void __launch_bounds__(KeysShape<kArithmetic, kDim, kTier>::kThreads,
                                  KeysShape<kArithmetic, kDim, kTier>::kTile.blocks)
    backward_keys_kernel(const __grid_constant__ BackwardArguments args) {
  using Shape = KeysShape<kArithmetic, kDim, kTier>;
  using Math = typename Shape::Math;
  constexpr KeysTile kTile = Shape::kTile;
  extern __shared__ __align__(128) char shared_memory[];
  allow_next_kernel();
  KeysWork work;
  if (!find_work<Shape>(args, work)) {
    wait_for_previous_kernel();  // who waits for this kernel means those before it, too
    return;
  }
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

    const StepAddresses step_at = step_addresses<Shape>(shared, at.stage, key_row);
    const int64_t first_query = static_cast<int64_t>(at.query_tile) * kTile.queries;
    if (warp_query < kTile.queries) {
      // Without dQ the compiler would unroll beyond the registers.
      constexpr int kUnroll = kOnePass ? 2 : 1;
#pragma unroll kUnroll
      for (int group = warp_query; group < warp_query + Shape::kWarpQueries; group += Shape::kGroup)
        take_group<Shape, kDim, kOnePass || Shape::kShared>(
            dk, dv, keys, values, step_at, group, first_column, lane, args,
            static_cast<int>(work.batch), first_key, first_key + key_row, first_query);
    }
    if (Shape::kShared || kOnePass) __syncthreads();
    if constexpr (Shape::kShared) {
      add_from_shared<Shape>(dv, step_at.scores, step_at.grad_out, warp_query, first_column, lane);
      add_from_shared<Shape>(dk, step_at.score_grads, step_at.q, warp_query, first_column, lane);
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
