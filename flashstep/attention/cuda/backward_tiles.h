// Tile shapes of the backward kernels and the shared memory they take: one table, read by the plan
// on the host and by the kernels at compile time.
#pragma once

#include "flashstep/attention/cuda/padded_dim.h"
#include "flashstep/attention/problem.h"

namespace flashstep::attention_cuda {

using attention_kernel::Element;

// How the matrix units multiply: 16-bit inputs as they are; float32 inputs rounded to TF32, or as a
// rounded part plus a rounded rest (three products, float32 accuracy).
enum class Arithmetic { kBfloat16, kFloat16, kTf32, kTf32x3 };

constexpr bool is_16_bit(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kBfloat16 || arithmetic == Arithmetic::kFloat16;
}

constexpr Element element_of(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kBfloat16  ? Element::kBfloat16
         : arithmetic == Arithmetic::kFloat16 ? Element::kFloat16
                                              : Element::kFloat32;
}

// Whether backward_hopper.cuh has passes for it.
constexpr bool has_warpgroups(Arithmetic arithmetic, int padded_dim) {
  return is_16_bit(arithmetic) && padded_dim >= 64 && padded_dim <= 128;
}

// In one pass two warpgroups divide dQ, whose columns come in tiles of 64.
constexpr bool has_one_pass_of_warpgroups(Arithmetic arithmetic, int padded_dim) {
  return has_warpgroups(arithmetic, padded_dim) && padded_dim % 64 == 0;
}

constexpr int element_bytes(Arithmetic arithmetic) { return is_16_bit(arithmetic) ? 2 : 4; }

// The pass over key tiles: a block owns `keys` keys, keeps their K, V, dK and dV, and steps over
// tiles of queries (Q, dO).
struct KeysTile {
  int keys;
  int queries;  // of a step
  // Warps along the keys, and warps that share their keys: those compute the scores of some of the
  // queries and pass them on through shared memory, then a part of the columns of dK and dV.
  int key_warps;
  int column_warps;
  int stages;     // tiles of Q and dO in flight
  int group;      // queries whose scores a warp holds in registers
  int blocks;     // of a multiprocessor: bounds the registers
  bool resident;  // A fragments of K and V stay in registers

  bool operator==(const KeysTile&) const = default;
};

constexpr int threads(const KeysTile& tile) { return 32 * tile.key_warps * tile.column_warps; }

// The pass over query tiles: a block owns `queries` queries and steps over tiles of K and V.
struct QueriesTile {
  int queries;
  int keys;  // of a step
  int warps;
  int stages;
};

constexpr int threads(const QueriesTile& tile) { return 32 * tile.warps; }

// What a row of queries brings besides Q and dO: its logsumexp and D, float32.
constexpr int kRowStatBytes = 2 * 4;

constexpr int shared_bytes(const KeysTile& tile, Arithmetic arithmetic, int padded_dim) {
  const int element = element_bytes(arithmetic);
  const int keys = 2 * tile.keys * padded_dim * element;                                    // K, V
  const int stage = tile.queries * (2 * padded_dim * element + kRowStatBytes);              // Q, dO
  const int scores = (tile.column_warps > 1 ? 2 : 1) * tile.keys * tile.queries * element;  // dS, P
  return keys + tile.stages * stage + scores;
}

constexpr int shared_bytes(const QueriesTile& tile, Arithmetic arithmetic, int padded_dim) {
  return 2 * (tile.queries + tile.stages * tile.keys) * padded_dim * element_bytes(arithmetic);
}

// Shared memory of a block, by the GPUs that have it: sm_90; sm_80; sm_86 and sm_89.
enum class SharedMemoryTier { k227KiB, k163KiB, k99KiB };

constexpr int shared_bytes(SharedMemoryTier tier) {
  return (tier == SharedMemoryTier::k227KiB   ? 227
          : tier == SharedMemoryTier::k163KiB ? 163
                                              : 99) *
         1024;
}

// Registers decide the shapes: the accumulators of dK and dV take keys / (16 key_warps) *
// padded_dim / column_warps of a thread, at most 128 of 255; then shared memory (KiB beside them).
// Warps of 32 keys read every fragment of Q and dO for two rows of fragments, which halves what the
// products read from shared memory, their bound beside the latency. Measured on an H200.
constexpr KeysTile keys_tile_16_bit(int padded_dim, SharedMemoryTier tier) {
  const bool narrow = tier == SharedMemoryTier::k99KiB;
  switch (padded_dim) {
    case 64:
      return {128, 64, 4, 1, 2, 32, 2, false};  // 81
    case 96:
      return narrow ? KeysTile{64, 64, 4, 1, 2, 64, 2, false}    // 81
                    : KeysTile{128, 64, 4, 2, 2, 32, 1, false};  // 129
    case 128:
      return narrow ? KeysTile{64, 32, 4, 1, 2, 32, 2, false}    // 69
                    : KeysTile{128, 64, 4, 2, 2, 32, 1, false};  // 161
    case 192:
      return narrow                              ? KeysTile{32, 32, 2, 2, 2, 32, 2, false}   // 77
             : tier == SharedMemoryTier::k163KiB ? KeysTile{64, 64, 2, 4, 2, 16, 1, false}   // 161
                                                 : KeysTile{96, 64, 3, 4, 2, 16, 1, false};  // 194
    case 256:
      return narrow                              ? KeysTile{32, 32, 2, 2, 1, 32, 2, false}   // 69
             : tier == SharedMemoryTier::k163KiB ? KeysTile{64, 64, 2, 4, 1, 16, 1, false}   // 145
                                                 : KeysTile{64, 64, 2, 4, 2, 16, 1, false};  // 209
    default:
      return {128, 64, 4, 1, 2, 32, 2, true};  // 16: 33, 32: 49
  }
}

constexpr KeysTile keys_tile_float32(int padded_dim, SharedMemoryTier tier) {
  const bool narrow = tier == SharedMemoryTier::k99KiB;
  switch (padded_dim) {
    case 64:
      return narrow ? KeysTile{64, 32, 4, 1, 2, 32, 2, false}    // 72
                    : KeysTile{128, 32, 4, 2, 2, 16, 1, false};  // 129
    case 96:
      return {64, 16, 4, 1, 2, 16, 1, false};  // 76
    case 128:
      return narrow ? KeysTile{32, 32, 2, 2, 1, 16, 1, false}   // 72
                    : KeysTile{64, 32, 4, 2, 1, 16, 2, false};  // 112
    case 192:
      return narrow ? KeysTile{32, 16, 2, 2, 1, 16, 1, false}   // 76
                    : KeysTile{32, 32, 2, 2, 2, 16, 1, false};  // 153
    case 256:
      return narrow ? KeysTile{16, 16, 1, 2, 1, 16, 1, false}   // 66
                    : KeysTile{32, 16, 2, 2, 2, 16, 1, false};  // 132
    default:
      return {64, 32, 4, 1, 2, 32, 2, false};  // 16: 24, 32: 40
  }
}

constexpr KeysTile keys_tile(Arithmetic arithmetic, int padded_dim, SharedMemoryTier tier) {
  return is_16_bit(arithmetic) ? keys_tile_16_bit(padded_dim, tier)
                               : keys_tile_float32(padded_dim, tier);
}

// Tiles of two warpgroups. Registers decide the steps: accumulators of scores, their gradients and
// two sums, with a narrow head dim for 128 queries. A product of 64 x 64 reads as much shared
// memory as the multiprocessor gives meanwhile, of 64 x 128 a quarter less.
constexpr int kWarpgroupRows = 128;
constexpr KeysTile warpgroup_keys_tile(int padded_dim) {
  return {kWarpgroupRows, padded_dim == 64 ? 128 : 64, 8, 1, 2, 64, 1, false};
}

constexpr QueriesTile queries_tile(Arithmetic arithmetic, int padded_dim) {
  if (is_16_bit(arithmetic)) {
    switch (padded_dim) {
      case 96:
        return {64, 64, 4, 2};  // 72
      case 128:
        return {64, 64, 4, 2};  // 96
      case 192:
        return {64, 32, 4, 2};  // 96
      case 256:
        return {64, 32, 4, 1};  // 96
      default:
        return {128, 64, 4, 2};  // 16: 16, 32: 32, 64: 64
    }
  }
  switch (padded_dim) {
    case 96:
      return {64, 16, 4, 2};  // 72
    case 128:
      return {64, 16, 4, 2};  // 96
    case 192:
      return {32, 16, 2, 2};  // 96
    case 256:
      return {32, 16, 2, 1};  // 96
    default:
      return {64, 32, 4, 2};  // 16: 16, 32: 32, 64: 64
  }
}

constexpr QueriesTile warpgroup_queries_tile(int padded_dim) {
  return {kWarpgroupRows, 128, 8, padded_dim == 64 ? 3 : 2};
}

}  // namespace flashstep::attention_cuda
