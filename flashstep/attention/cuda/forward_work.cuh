// What a block of the forward kernel is asked to do: its head, its queries and its keys.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>

#include "flashstep/attention/cuda/forward_turns.h"
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
  int diagonal, window;      // query i sees the last `window` of the keys 0..i + diagonal
  bool has_window;           // that hides a key, or documents do
  int tile_rows, tile_keys;  // the latter a power of two
  int row_tiles;
  int splits;  // parts of the keys, each taken by a block of its own
  int keys_per_split;
  int section_heads;  // heads whose keys and values stay in L2 together: find_work()
  bool tiles_differ;  // ForwardTurns
  int pair_turns;
  float* partial_out;     // (splits, B H, N, D), not normalised; null where splits is 1
  float2* partial_state;  // (splits, B H, N): base-2 reference and sum (forward_softmax.cuh)
};

// begin..end - 1
struct Keys {
  int begin, end;
};

// The first key that a query sees, and the one behind the last: the rule of problem.h in 32 bits.
// kWindow: whether there is a window, or documents.
template <bool kWindow>
__device__ inline int first_key(const ForwardArguments& a, int batch, int query) {
  if (!kWindow) return 0;
  const int begin = max(query + a.diagonal + 1 - a.window, 0);
  const int* const documents = a.pass.problem.documents;
  if (documents == nullptr) return begin;
  return max(begin, documents[int64_t{batch} * a.n + min(query, a.n - 1)]);
}
template <bool kWindow>
__device__ inline int end_key(const ForwardArguments& a, int batch, int query) {
  const int end = min(query + a.diagonal + 1, a.m);
  const int* const documents = kWindow ? a.pass.problem.documents : nullptr;
  if (documents == nullptr || a.pass.problem.causal) return end;  // its own position is within
  const int64_t row = a.pass.problem.batches + batch;
  return min(end, documents[row * a.n + min(query, a.n - 1)]);
}
template <bool kWindow>
__device__ inline bool sees_nothing(const ForwardArguments& a, int batch, int query) {
  return first_key<kWindow>(a, batch, query) >= end_key<kWindow>(a, batch, query);
}

// Those that a row tile sees, from the first of a step on.
template <bool kWindow>
__device__ inline Keys keys_of_tile(const ForwardArguments& a, int batch, int tile) {
  const int first = tile * a.tile_rows, last = min(first + a.tile_rows, a.n) - 1;
  const int begin = first_key<kWindow>(a, batch, first);
  const int end = max(begin, end_key<kWindow>(a, batch, last));
  return {begin < end ? begin & -a.tile_keys : end, end};
}

struct ForwardWork {
  int batch, head;
  int split;
  int first_row;
  int first_key, end_key;  // the block's part of the keys
};

// batch_head: batch * heads + head.
template <bool kWindow>
__device__ inline ForwardWork make_work(const ForwardArguments& a, int batch_head, int tile,
                                        int split) {
  const int heads = static_cast<int>(a.pass.problem.heads);
  ForwardWork work;
  work.batch = batch_head / heads;
  work.head = batch_head % heads;
  work.split = split;
  work.first_row = tile * a.tile_rows;
  const Keys keys = keys_of_tile<kWindow>(a, work.batch, tile);
  const int part = split * a.keys_per_split;
  work.first_key = kWindow ? max(keys.begin, part) : part;
  work.end_key = max(work.first_key, min(keys.end, part + a.keys_per_split));
  return work;
}

__device__ inline ForwardTiles tiles_of(const ForwardArguments& a) {
  const auto& problem = a.pass.problem;
  return {static_cast<int>(problem.batches * problem.heads), a.row_tiles, a.splits, a.tiles_differ,
          a.pair_turns};
}

// Blocks start in the order of their index. Heads come in sections that fit into L2; in a section
// the row tiles with the most keys come first, so that the short ones fill the end.
template <bool kWindow>
__device__ inline ForwardWork find_work(const ForwardArguments& a, unsigned block) {
  const unsigned heads = static_cast<unsigned>(a.pass.problem.batches * a.pass.problem.heads);
  const unsigned head_blocks = a.row_tiles * a.splits;
  const unsigned first_head = block / (head_blocks * a.section_heads) * a.section_heads;
  const unsigned section = min(static_cast<unsigned>(a.section_heads), heads - first_head);
  const unsigned rest = block - first_head * head_blocks, tile_split = rest / section;
  const int tile = a.row_tiles - 1 - static_cast<int>(tile_split / a.splits);
  return make_work<kWindow>(a, static_cast<int>(first_head + rest % section), tile,
                            static_cast<int>(tile_split % a.splits));
}

}  // namespace flashstep::attention_cuda
