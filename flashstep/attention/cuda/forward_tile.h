// The tiles of the forward kernels: what the compiler must know, per dtype, padded head dim and
// shape.
#pragma once

#include "flashstep/attention/cuda/padded_dim.h"
#include "flashstep/attention/problem.h"

namespace flashstep::attention_cuda {

using attention_kernel::Element;

// One block of threads takes `rows()` queries of one head and passes over the keys, `keys` at a
// time.
struct ForwardTile {
  int row_blocks;  // blocks of 16 queries (the rows of one mma) that a warp holds
  int warps;       // of a thread block, each with its own queries
  int keys;        // in one step of the pass
  int stages;      // steps of keys and values in shared memory: one read, the others on the way
  bool q_in_registers;      // for the whole pass; else read again from shared memory in each step
  int blocks_per_sm;        // that should fit: bounds the registers of a thread
  bool warpgroups = false;  // forward_hopper.cuh, which has four more warps for copies

  constexpr int rows() const { return 16 * row_blocks * warps; }
  constexpr int threads() const { return 32 * (warps + (warpgroups ? 4 : 0)); }
};

// Narrow tiles give more blocks and shorter passes where there are few queries. Wide ones read
// shared memory half as often for each product; large ones, for long passes, also fill it half as
// often. Those of warpgroups are of Hopper alone, the narrow ones for head dims up to 64.
enum class TileShape { kNarrow, kWide, kLarge, kWarpgroups, kNarrowWarpgroups };
constexpr TileShape kTileShapes[] = {TileShape::kNarrow, TileShape::kWide, TileShape::kLarge,
                                     TileShape::kWarpgroups, TileShape::kNarrowWarpgroups};

constexpr bool has_warpgroups(Element element, int dim) {
  return element != Element::kFloat32 && dim >= 64 && dim <= 128;
}

// Registers of a thread: the output takes row_blocks * dim / 2, the scores row_blocks * keys / 2,
// the queries in registers row_blocks * dim / 4 (16 bits), of 255. Shared memory is
// forward_shared_bytes() below: at most 99 KiB (sm_86), but for large tiles, which the plan takes
// only where they fit.
constexpr ForwardTile forward_tile(Element element, int dim, TileShape shape) {
  if (element == Element::kFloat32) {
    if (dim <= 32) return {1, 4, 32, 3, false, 4};
    if (dim <= 64) return {1, 4, 32, 2, false, 3};
    if (dim <= 128) return {1, 4, 32, 2, false, 2};
    if (dim <= 192) return {1, 4, 16, 2, false, 2};
    return {1, 2, 16, 2, false, 2};
  }
  if (shape == TileShape::kWarpgroups && has_warpgroups(element, dim))
    return {1, dim == 64 ? 12 : 8, 128, 2, false, 1, true};
  if (shape == TileShape::kNarrowWarpgroups && dim == 64) return {1, 8, 128, 2, false, 1, true};
  if (shape == TileShape::kNarrow) {
    if (dim <= 32) return {1, 4, 64, 4, true, 4};
    if (dim <= 64) return {1, 4, 64, 3, true, 3};
    if (dim <= 128) return {1, 4, 64, 2, true, 2};
    if (dim <= 192) return {1, 4, 32, 2, false, 2};
  }
  if (shape == TileShape::kLarge && dim > 64 && dim <= 128) return {2, 8, 64, 2, false, 1};
  if (dim <= 16) return {2, 4, 64, 2, true, 4};
  if (dim <= 32) return {2, 4, 64, 2, true, 3};
  if (dim <= 64) return {2, 4, 64, 3, true, 2};
  if (dim <= 128) return {2, 4, 32, 2, false, 2};
  if (dim <= 192) return {1, 8, 32, 2, false, 1};
  return {1, 4, 32, 2, false, 2};
}

constexpr int forward_shared_bytes(Element element, int dim, const ForwardTile& tile) {
  // Warpgroups: whole columns of 64; barriers, and what aligns the first tile to 1024 bytes.
  const int columns = tile.warpgroups ? (dim + 63) / 64 * 64 : dim;
  const int row_bytes = columns * (element == Element::kFloat32 ? 4 : 2);
  return row_bytes * (tile.rows() + 2 * tile.stages * tile.keys) + (tile.warpgroups ? 2048 : 0);
}

}  // namespace flashstep::attention_cuda
