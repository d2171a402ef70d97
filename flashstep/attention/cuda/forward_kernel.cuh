// FlashAttention-2 forward: a block of warps holds some queries of one head and passes over the
// keys.
//
// Each warp has its own rows: scores (mma), softmax (forward_softmax.cuh), out += weights v (mma),
// all in its registers. Keys and values go through a ring of shared memory that cp.async fills some
// steps ahead; one barrier a step. Source: Dao, "FlashAttention-2" (2023), algorithm 1, section 3.
#pragma once

#include "flashstep/attention/cuda/forward_matrix.cuh"
#include "flashstep/attention/cuda/forward_output.cuh"
#include "flashstep/attention/cuda/forward_softmax.cuh"
#include "flashstep/attention/cuda/forward_tile.h"
#include "flashstep/attention/cuda/forward_work.cuh"
#include "flashstep/attention/cuda/head_rows.cuh"

namespace flashstep::attention_cuda {

// How exact float32 products are; 16-bit ones are exact.
enum class Accuracy { kFull, kTf32 };

template <Element kElement, Accuracy kAccuracy>
struct ProductsOf {
  using Type = Products<kElement>;
};
template <Accuracy kAccuracy>
struct ProductsOf<Element::kFloat32, kAccuracy> {
  using Type = Float32Products<kAccuracy == Accuracy::kFull>;
};

// Turns the signs of the queries, or makes them zero, so that the scale left is positive: then the
// row's largest score has the largest weight, and -infinity times the scale is -infinity.
template <typename QueryTile, int kThreads>
__device__ inline void apply_sign(const ForwardArguments& a, uint32_t q_tile) {
  for (int i = threadIdx.x * 4; i < QueryTile::kBytes; i += kThreads * 4) {
    store_shared(q_tile + i, (load_shared(q_tile + i) & a.query_and) ^ a.query_xor);
  }
}

// A tile as a type: nvcc 13 cannot name kernels that have a structure among their parameters.
template <Element kElement, int kDim, TileShape kShape>
struct PlannedTile {
  static constexpr ForwardTile kTile = forward_tile(kElement, kDim, kShape);
};

// kWindow: whether there is a window, or documents. With one kernel for both, float32 without a
// window was 2 to 3 % slower.
template <Element kElement, int kDim, typename Planned, Accuracy kAccuracy, bool kWindow>
__global__ void __launch_bounds__(Planned::kTile.threads(), Planned::kTile.blocks_per_sm)
    forward_kernel(const __grid_constant__ ForwardArguments a) {
  constexpr ForwardTile kTile = Planned::kTile;
  constexpr int kBytes = element_bytes(kElement);
  constexpr int kThreads = kTile.threads();
  constexpr int kRowBlocks = kTile.row_blocks;
  constexpr int kColumnBlocks = kTile.keys / kMmaColumns;
  constexpr int kStages = kTile.stages;
  constexpr bool kHoldQuery = kTile.q_in_registers;
  using QueryTile = Tile<kBytes, kTile.rows(), kDim>;
  using KeyTile = Tile<kBytes, kTile.keys, kDim>;
  using Math = typename ProductsOf<kElement, kAccuracy>::Type;

  allow_next_kernel();
  const ForwardWork work = find_work<kWindow>(a, blockIdx.x);
  if (a.splits > 1 && work.first_key >= work.end_key) return;
  const int lane = threadIdx.x % kWarp;
  const int warp_row = threadIdx.x / kWarp * kRowBlocks * kMmaRows;

  extern __shared__ __align__(128) char shared[];
  const uint32_t q_tile = shared_address(shared);
  const uint32_t k_tiles = q_tile + QueryTile::kBytes;
  const uint32_t v_tiles = k_tiles + kStages * KeyTile::kBytes;

  const auto& problem = a.pass.problem;
  const int64_t kv_head = work.head / (problem.heads / problem.kv_heads);
  const RowSource q =
      head_rows<kBytes>(a.pass.q, work.batch, work.head, problem.n, problem.head_dim);
  const RowSource k = head_rows<kBytes>(a.pass.k, work.batch, kv_head, problem.m, problem.head_dim);
  const RowSource v = head_rows<kBytes>(a.pass.v, work.batch, kv_head, problem.m, problem.head_dim);
  const int steps = (work.end_key - work.first_key + kTile.keys - 1) / kTile.keys;
  const auto load_step = [&](int step) {
    if (step < steps) {
      const int stage = step % kStages;
      const int key = work.first_key + step * kTile.keys;
      load_tile<KeyTile, kThreads>(k_tiles + stage * KeyTile::kBytes, k, key, threadIdx.x);
      load_tile<KeyTile, kThreads>(v_tiles + stage * KeyTile::kBytes, v, key, threadIdx.x);
    }
    cp_async_commit();
  };

  load_tile<QueryTile, kThreads>(q_tile, q, work.first_row, threadIdx.x);
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) load_step(step);
  if (a.query_and != ~0u || a.query_xor != 0) {
    cp_async_wait<0>();
    __syncthreads();
    apply_sign<QueryTile, kThreads>(a, q_tile);
  }

  const uint32_t q_lane = a_lane_address<QueryTile>(q_tile, lane) + warp_row * QueryTile::kRowBytes;
  const auto read_query = [&](int b, int step, uint32_t(&fragment)[4]) {
    ldmatrix_x4(fragment, QueryTile::advance(q_lane, step) + b * kMmaRows * QueryTile::kRowBytes);
  };
  constexpr int kHeldSteps = kHoldQuery ? QueryTile::kChunks / 2 : 1;
  uint32_t held_query[kRowBlocks][kHeldSteps][4];
  const auto query = [&](int b, int step, uint32_t(&fragment)[4]) {
    if constexpr (kHoldQuery) {
#pragma unroll
      for (int i = 0; i < 4; ++i) fragment[i] = held_query[b][step / 2][i];
    } else {
      read_query(b, step, fragment);
    }
  };

  float out[kRowBlocks][kDim / kMmaColumns][4] = {};
  RowState<kRowBlocks> state;
  const int row = work.first_row + warp_row + lane / 4;
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // this step's keys are there, and the ring's next place has been read by all
    load_step(step + kStages - 1);
    if constexpr (kHoldQuery) {
      if (step == 0) {
#pragma unroll
        for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
          for (int i = 0; i < kHeldSteps; ++i) read_query(b, 2 * i, held_query[b][i]);
        }
      }
    }
    const int stage = step % kStages;
    const int key = work.first_key + step * kTile.keys;
    float scores[kRowBlocks][kColumnBlocks][4] = {};
    Math::template scores<KeyTile>(
        scores, query, b_lane_address<KeyTile>(k_tiles + stage * KeyTile::kBytes, lane));
    mask_scores<kTile.keys, kWindow>(scores, a, work.batch, work.first_row,
                                     work.first_row + kTile.rows() - 1, key, row);
    float factor[kRowBlocks][2];
    if (move_references(scores, state, factor, a.scale_log2)) scale_out(out, factor);
    weigh_scores(scores, state, a.scale_log2);
    Math::template weighted_values<KeyTile>(out, scores, v_tiles + stage * KeyTile::kBytes, lane);
  }
  cp_async_wait<0>();

  if (a.splits == 1) {
    write_rows<kElement, kWindow>(a, work, row, state, out);
  } else {
    write_partial_rows(a, work, row, state, out);
  }
}

}  // namespace flashstep::attention_cuda
