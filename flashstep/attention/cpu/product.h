// What a block of a matrix product is: accumulators that stay in registers over the whole depth.
#pragma once

#include <cstdint>

namespace flashstep::attention_cpu {

// How the left operand stands in its tile: element (row, k) at left[row * stride + k] or,
// transposed, at left[k * stride + row].
enum class Side { kPlain, kTransposed };

// What becomes of the numbers in `out`: overwritten, added to, or multiplied by the row's factor
// and added to.
enum class Update { kStore, kAdd, kScaleAndAdd };

// out (rows, vectors) = left (rows, depth) right (depth, vectors). Word is what one step of depth
// takes: a float, or a pair of bfloat16 that are neighbours in depth.
template <typename Word>
struct Block {
  const Word* left;
  const Word* right;  // one panel
  int64_t depth;
  float* out;
  int64_t out_stride;
  Update update;
  const float* factor;  // of each row
};

}  // namespace flashstep::attention_cpu
