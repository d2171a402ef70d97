// The layout of tiles in scratch memory, and which of their elements the mask leaves visible.
//
// A tile holds query rows against key columns. The left operand of a product is read one element at
// a time and broadcast: its rows stand kStride elements apart, a constant, so that a block of rows
// is addressed from one register. The right operand is read by vectors: it stands in panels of two
// vectors, each panel depth x 2 without gaps; of the last panel the second may be missing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "flashstep/attention/problem.h"

namespace flashstep::attention_cpu {

using attention_kernel::ceil_div;
using attention_kernel::Problem;
using attention_kernel::Range;
using attention_kernel::seeing_queries;
using attention_kernel::visible_keys;

constexpr int kMaxTile = 256;  // keys of a tile, and the largest head dim
// One cache line more than the largest tile: rows at a power of two would share few cache sets.
constexpr int kStride = kMaxTile + 16;
constexpr int kMaxBlockRows = 12;  // rows of the largest block of accumulators
constexpr int kMaxPanel = 32;      // columns of a panel of two AVX-512 vectors
constexpr int kDepthUnit = 4;      // words: what a transposition takes of a row at once

constexpr int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// Row r of a tile sees its columns r + begin..r + end - 1.
struct Visible {
  int64_t begin, end;
};
constexpr Visible kAllVisible = {-(int64_t{1} << 40), int64_t{1} << 40};

// Of a bounded mask, in the tile whose first query and key these are.
inline Visible visible_in_tile(const Problem& problem, int64_t query, int64_t key) {
  const int64_t end = query + problem.diagonal + 1 - key;
  return {end - problem.window, end};
}

}  // namespace flashstep::attention_cpu
