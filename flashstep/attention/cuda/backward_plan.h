// How a backward pass is cut into kernels, blocks and steps: a pure function of the problem and
// GPU.
//
// One pass: blocks own tiles of keys, step over tiles of queries and add their part of dQ to
// float32 sums, atomically: 5 matrix products a tile. Two passes: dK and dV so, without dQ, then
// blocks that own tiles of queries step over keys for dQ: 7 products, but every sum has one order,
// so that bits repeat. On Hopper whole tiles are taken by warpgroups, in two passes or in one,
// which can add in order, too. Elsewhere, where the tiles of a pass are too few to fill the GPU,
// the steps of a tile are cut into chunks for several blocks, which add to common sums (one pass)
// or write slices that are summed in order (two passes). Where short sums need more chunks than
// there is memory for slices, two passes take the chunks in waves: launches of which each adds to
// the slices (or to the results, where they are float32 and there is no room at all) of the one
// before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "flashstep/attention/cuda/backward_tiles.h"
#include "flashstep/attention/cuda/device.h"
#include "flashstep/attention/problem.h"

namespace flashstep::attention_cuda {

using attention_kernel::at_most;
using attention_kernel::Backward;
using attention_kernel::ceil_div;
using attention_kernel::document_of;
using attention_kernel::Problem;
using attention_kernel::Range;
using attention_kernel::seeing_queries;
using attention_kernel::tiles_of;
using attention_kernel::visible_keys;

// The blocks of a pass over the tiles (of keys, or of queries) of all heads.
struct BackwardGrid {
  int64_t heads;          // key heads, or query heads
  int64_t tiles;          // of a head
  int64_t chunk_steps;    // steps that a block takes, at most
  int64_t chunks;         // blocks for the tile with the most steps
  int64_t wave_chunks;    // of one launch; chunk c adds to what chunk c - wave_chunks has left
  int64_t section_heads;  // heads in work at the same time
  int64_t blocks;         // of one launch
};

// Which kernels: those by warps everywhere, or by warpgroups (backward_hopper.cuh and
// backward_hopper_one_pass.cuh).
enum class BackwardForm { kWarps, kWarpgroups, kWarpgroupsOnePass };

struct BackwardPlan {
  Arithmetic arithmetic;
  int padded_dim;
  SharedMemoryTier tier;
  bool warpgroups;  // tiles of 128 rows, no chunks
  bool one_pass;
  bool ordered;  // one pass whose blocks add to dQ in the order of their keys
  int sm_count;
  KeysTile keys_tile;
  QueriesTile queries_tile;
  BackwardGrid keys;
  BackwardGrid queries;        // two passes only
  int64_t padded_n, padded_m;  // rows of a head in the workspace
  int64_t q_slices, k_slices;  // float32 sums of dQ, and of dK and dV; 0: results at once
  int64_t q_slice, k_slice;    // floats of one
  // Workspace, in floats from its start; the sums stand last, one after the other. Turns: a counter
  // of 32 bits for every tile of queries, where sums are ordered.
  int64_t logsumexp_at, row_dots_at, turns_at, q_sums_at, k_sums_at, v_sums_at, workspace_floats;

  size_t workspace_bytes() const { return workspace_floats * sizeof(float); }
};

// In this form, which must be there for the problem and GPU.
BackwardPlan plan_of(const Problem& problem, const Device& device, BackwardForm form);

// In the form that costs least.
BackwardPlan plan_backward(const Problem& problem, const Device& device);

// One line: what the plan says, for reports and failing tests.
std::string describe(const BackwardPlan& plan);

// The tiles of keys of which one of these queries sees one, and the tiles of queries of which one
// sees one of these keys. All others are skipped. Plans are made without documents; kernels, which
// say a batch, skip what these hide, too.
constexpr Range key_tiles(const Problem& problem, int64_t first_query, int64_t end_query,
                          int keys) {
  return tiles_of({visible_keys(problem, first_query).begin,
                   visible_keys(problem, at_most(end_query, problem.n) - 1).end},
                  keys);
}
constexpr Range query_tiles(const Problem& problem, int64_t first_key, int64_t end_key,
                            int queries) {
  return tiles_of({seeing_queries(problem, first_key).begin,
                   seeing_queries(problem, at_most(end_key, problem.m) - 1).end},
                  queries);
}

constexpr Range key_tiles(const Problem& problem, int64_t batch, int64_t first_query,
                          int64_t end_query, int keys) {
  return tiles_of({visible_keys(problem, batch, first_query).begin,
                   visible_keys(problem, batch, at_most(end_query, problem.n) - 1).end},
                  keys);
}
constexpr Range query_tiles(const Problem& problem, int64_t batch, int64_t first_key,
                            int64_t end_key, int queries) {
  return tiles_of({seeing_queries(problem, batch, first_key).begin,
                   seeing_queries(problem, batch, at_most(end_key, problem.m) - 1).end},
                  queries);
}

// Steps of a tile of keys: its tiles of queries, for every query head of its key head. `batch`: as
// above.
template <typename... Batch>
constexpr int64_t key_tile_steps(const Problem& problem, const KeysTile& shape, int64_t tile,
                                 Batch... batch) {
  return problem.heads / problem.kv_heads *
         query_tiles(problem, batch..., tile * shape.keys, (tile + 1) * shape.keys, shape.queries)
             .size();
}

template <typename... Batch>
constexpr int64_t query_tile_steps(const Problem& problem, const QueriesTile& shape, int64_t tile,
                                   Batch... batch) {
  return key_tiles(problem, batch..., tile * shape.queries, (tile + 1) * shape.queries, shape.keys)
      .size();
}

// What a kernel gets.
struct BackwardArguments {
  Backward pass;
  BackwardPlan plan;
  int64_t first_chunk;  // of the wave
  float scale_log2;     // scale log2(e)
  float* logsumexp;     // (B, H, padded_n): in units of log2; +infinity where no key is seen
  float* row_dots;      // (B, H, padded_n): D = rowsum(dO o O) - grad_logsumexp
  int* turns;           // (B, H, padded_n / queries of a step): blocks that have added
  float *q_sums, *k_sums, *v_sums;
};

}  // namespace flashstep::attention_cuda
