// The pass over tiles of keys: its shape, the work of a block, and the loads of a step.
#pragma once

#include <type_traits>

#include "flashstep/attention/cuda/backward_plan.h"
#include "flashstep/attention/cuda/backward_products.cuh"
#include "flashstep/attention/cuda/head_rows.cuh"

namespace flashstep::attention_cuda {

// The largest divisor of `number` that is at most `most`.
constexpr int divisor(int number, int most) {
  while (number % most != 0) --most;
  return most;
}

template <Arithmetic kArithmetic, int kDim, SharedMemoryTier kTier>
struct KeysShape {
  static constexpr KeysTile kTile = keys_tile(kArithmetic, kDim, kTier);
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
  const int64_t chunk = args.first_chunk + index % grid.wave_chunks;
  index /= grid.wave_chunks;
  work.tile = index % grid.tiles;
  const int64_t head = index / grid.tiles * grid.section_heads + head_of_section;
  if (head >= grid.heads) return false;
  work.batch = head / problem.kv_heads;
  work.head = head % problem.kv_heads;
  const int64_t first_key = work.tile * Shape::kTile.keys;
  const Range tiles = query_tiles(problem, work.batch, first_key, first_key + Shape::kTile.keys,
                                  Shape::kTile.queries);
  work.first_query_tile = static_cast<int>(tiles.begin);
  work.head_steps = static_cast<int>(tiles.size());
  const int64_t steps = work.head_steps * (problem.heads / problem.kv_heads);
  const int64_t begin = chunk * grid.chunk_steps;
  const int64_t end = begin + grid.chunk_steps < steps ? begin + grid.chunk_steps : steps;
  work.begin = static_cast<int>(begin);
  work.end = static_cast<int>(end);
  // Where results come at once, a block writes zeros for keys that no one sees.
  return begin < end || (chunk == 0 && args.plan.k_slices == 0);
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

}  // namespace flashstep::attention_cuda
