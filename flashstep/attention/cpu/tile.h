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

constexpr int kMaxTile = 256;  // keys of a tile, and the largest head dim
// One cache line more than the largest tile: rows at a power of two would share few cache sets.
constexpr int kStride = kMaxTile + 16;
constexpr int kMaxBlockRows = 12;  // rows of the largest block of accumulators
constexpr int kMaxPanel = 32;      // columns of a panel of two AVX-512 vectors
constexpr int kDepthUnit = 4;      // words: what a transposition takes of a row at once

constexpr int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// Keys that a query sees: 0..visible_keys - 1.
inline int64_t visible_keys(const Problem& problem, int64_t query) {
  if (!problem.causal) return problem.m;
  return std::clamp<int64_t>(query + problem.diagonal + 1, 0, problem.m);
}

// The first query that sees a key.
inline int64_t first_query(const Problem& problem, int64_t key) {
  if (!problem.causal) return 0;
  return std::clamp<int64_t>(key - problem.diagonal, 0, problem.n);
}

// Row r of a tile sees its columns 0..r + shift.
using Shift = int64_t;
constexpr Shift kAllVisible = int64_t{1} << 40;

inline Shift tile_shift(const Problem& problem, int64_t query, int64_t key) {
  return problem.causal ? query + problem.diagonal - key : kAllVisible;
}

// A diagonal beyond the corners hides or shows everything, wherever it stands exactly.
inline Problem with_near_diagonal(Problem problem) {
  problem.diagonal = std::clamp(problem.diagonal, -problem.n, problem.m);
  return problem;
}

}  // namespace flashstep::attention_cpu
