// What a block of the forward kernel is asked to do: its head, its queries and its keys.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>

#include "flashstep/attention/problem.h"

namespace flashstep::attention_cuda {

using attention_kernel::Forward;

// The kernel's arguments: the pass and its plan, in the kernel's terms.
struct ForwardArguments {
  Forward pass;
  float scale_log2;    // |scale| log2(e), or 1 where scale is 0: never negative nor 0
  uint32_t query_and;  // the queries' bits are masked with this (0 where scale is 0) ...
  uint32_t query_xor;  // ... and their signs turned with this where scale is negative
  int n, m;
  int diagonal;  // query i sees the keys 0..i + diagonal; m where all are seen
  int tile_rows;
  int row_tiles;
  int splits;  // parts of the keys, each taken by a block of its own
  int keys_per_split;
  int64_t blocks;         // of the plan
  int section_heads;      // heads whose keys and values stay in L2 together
  float* partial_out;     // (splits, B H, N, D), not normalised; null where splits is 1
  float2* partial_state;  // (splits, B H, N): base-2 reference and sum (forward_softmax.cuh)
};

// Keys that the last query of a row tile sees, thus that the tile needs.
__host__ __device__ inline int keys_of_tile(const ForwardArguments& arguments, int tile) {
  const int64_t past = static_cast<int64_t>(tile + 1) * arguments.tile_rows;
  const int64_t last = (past < arguments.n ? past : arguments.n) - 1;
  const int64_t seen = last + arguments.diagonal + 1;
  return seen <= 0 ? 0 : seen < arguments.m ? static_cast<int>(seen) : arguments.m;
}

struct ForwardWork {
  int batch, head;
  int split;
  int first_row;
  int first_key, end_key;  // the block's part of the keys
  int all_seen_key;        // below it every query of the tile sees every key
};

// Blocks start in the order of their index. Heads come in sections that fit into L2; in a section
// the row tiles with the most keys come first, so that the short ones fill the end.
__device__ inline ForwardWork find_work(const ForwardArguments& a, unsigned block) {
  const unsigned heads = a.pass.problem.heads;
  const unsigned head_blocks = a.row_tiles * a.splits;
  const unsigned first_head = block / (head_blocks * a.section_heads) * a.section_heads;
  const unsigned section = min(static_cast<unsigned>(a.section_heads),
                               static_cast<unsigned>(a.pass.problem.batches) * heads - first_head);
  const unsigned rest = block - first_head * head_blocks;
  const unsigned batch_head = first_head + rest % section;
  const unsigned tile_split = rest / section;
  const int tile = a.row_tiles - 1 - static_cast<int>(tile_split / a.splits);
  ForwardWork work;
  work.batch = static_cast<int>(batch_head / heads);
  work.head = static_cast<int>(batch_head % heads);
  work.split = tile_split % a.splits;
  work.first_row = tile * a.tile_rows;
  const int keys = keys_of_tile(a, tile);
  work.first_key = work.split * a.keys_per_split;
  work.end_key = min(keys, work.first_key + a.keys_per_split);
  work.all_seen_key = min(a.m, work.first_row + a.diagonal + 1);
  return work;
}

}  // namespace flashstep::attention_cuda
