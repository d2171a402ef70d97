// Tile sizes, parallel tasks and scratch memory as pure functions of the problem and the cache.
#pragma once

#include <cstdint>
#include <string>

#include "flashstep/attention/cpu/tile.h"

namespace flashstep::attention_cpu {

struct Machine {
  int64_t l2_bytes;  // of one core
  bool bf16_dot;     // bfloat16 operands go into dot products as they are
};

// Keys and values of some heads (a wave) are packed once, tile by tile; then every task attends
// with a tile of queries of one head to all keys that these see.
struct ForwardPlan {
  int key_tile;                               // a multiple of kMaxPanel
  int64_t key_tiles;                          // of a head
  int query_tile;                             // a multiple of kMaxBlockRows
  int64_t query_tiles;                        // of a head
  int64_t heads_per_wave;                     // key/value heads
  bool shared;                                // packed keys serve several tasks
  int elements_per_word;                      // of an operand: 1 float32 or 2 bfloat16
  int padded_dim;                             // head dim up to whole panels
  int depth;                                  // of a product over it: with zeros to whole units
  int64_t key_words, tile_words, head_words;  // packed keys of a tile; with values; of all tiles
  // Where a worker's arrays begin in its scratch memory, in words.
  int64_t queries, scores, weights, packing, keys, out, top, weight_sum, factor, scratch_words;
};

// A task owns a chunk of the keys of one key/value head and goes over its tiles: for each, over all
// query tiles that see it. It sums grad_k and grad_v itself and grad_q into an array of its own;
// the arrays are then summed in a fixed order, so that the result depends on no timing.
struct BackwardPlan {
  int key_tile, query_tile;  // multiples of 16
  int64_t key_tiles, query_tiles;
  int64_t chunks, tiles_per_chunk;  // of a head's key tiles
  int64_t heads_per_wave;           // key/value heads
  int elements_per_word, padded_dim, depth;
  int64_t grad_q_rows;    // of all query heads of a key/value head, padded
  int64_t grad_q_floats;  // of a chunk
  // Where a worker's arrays begin in its scratch memory, in words.
  int64_t keys, keys_transposed, values_transposed, queries, queries_right, grads, grads_right;
  int64_t scores, weight_grads, rounded, grad_k, grad_v, logsumexp, delta, scratch_words;
};

ForwardPlan plan_forward(const Problem& problem, const Machine& machine);
BackwardPlan plan_backward(const Problem& problem, const Machine& machine);

std::string to_string(const ForwardPlan& plan);
std::string to_string(const BackwardPlan& plan);

}  // namespace flashstep::attention_cpu
