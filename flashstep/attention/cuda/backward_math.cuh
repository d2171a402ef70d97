// Fragments for the products of the backward pass, in the four arithmetics, and how they come from
// tiles (mma.cuh has the layouts).
//
// Four operands are read from rows as they lie in the tile (the depth runs along the row) or from
// columns (the depth runs down the rows, rows of the tile are the summed index). float32 columns
// cannot be transposed by ldmatrix; they are read number by number, and a step of 8 rows is taken
// in the order 0, 2, 4, 6, 1, 3, 5, 7: lane t reads rows 2t and 2t + 1, which is also how C
// fragments hold columns, so that scores in registers become A fragments without an exchange, and
// which meets every bank once. Whatever is multiplied with such columns is read in the same order
// ("paired").
#pragma once

#include <cstdint>

#include "flashstep/attention/cuda/backward_tiles.h"
#include "flashstep/attention/cuda/mma.cuh"
#include "flashstep/attention/cuda/ptx.cuh"
#include "flashstep/attention/cuda/tile.cuh"

namespace flashstep::attention_cuda {

// The 4 registers of an A fragment (16 rows), or of the B fragments of 16 columns.
struct PlainFragment {
  uint32_t r[4];
};

template <Arithmetic>
struct Multiply;

// prepare: four registers as read to what is multiplied. mma: c += a b, b the fragment's columns
// 8 kHalf..8 kHalf + 7.
template <>
struct Multiply<Arithmetic::kBfloat16> {
  static constexpr Element kElement = Element::kBfloat16;
  using Fragment = PlainFragment;
  __device__ static Fragment prepare(const uint32_t (&r)[4]) { return {r[0], r[1], r[2], r[3]}; }
  template <int kHalf>
  __device__ static void mma(float (&c)[4], const Fragment& a, const Fragment& b) {
    mma_m16n8k16_bf16(c, a.r, b.r[2 * kHalf], b.r[2 * kHalf + 1]);
  }
};

template <>
struct Multiply<Arithmetic::kFloat16> {
  static constexpr Element kElement = Element::kFloat16;
  using Fragment = PlainFragment;
  __device__ static Fragment prepare(const uint32_t (&r)[4]) { return {r[0], r[1], r[2], r[3]}; }
  template <int kHalf>
  __device__ static void mma(float (&c)[4], const Fragment& a, const Fragment& b) {
    mma_m16n8k16_f16(c, a.r, b.r[2 * kHalf], b.r[2 * kHalf + 1]);
  }
};

template <>
struct Multiply<Arithmetic::kTf32> {
  static constexpr Element kElement = Element::kFloat32;
  using Fragment = PlainFragment;
  __device__ static Fragment prepare(const uint32_t (&r)[4]) {
    return {round_to_tf32(r[0]), round_to_tf32(r[1]), round_to_tf32(r[2]), round_to_tf32(r[3])};
  }
  template <int kHalf>
  __device__ static void mma(float (&c)[4], const Fragment& a, const Fragment& b) {
    mma_m16n8k8_tf32(c, a.r, b.r[2 * kHalf], b.r[2 * kHalf + 1]);
  }
};

template <>
struct Multiply<Arithmetic::kTf32x3> {
  static constexpr Element kElement = Element::kFloat32;
  using Fragment = SplitFragment<4>;
  __device__ static Fragment prepare(const uint32_t (&r)[4]) { return split_fragment(r); }
  template <int kHalf>
  __device__ static void mma(float (&c)[4], const Fragment& a, const Fragment& b) {
    // The units cut their sums instead of rounding them, which over hundreds of steps is a bias of
    // 2^-23 each: a step sums from zero, and long sums are float32 additions. Source: Ootomo and
    // Yokota, "Recovering single precision accuracy from Tensor Cores" (2022).
    float step[4] = {0, 0, 0, 0};
    mma_split(step, a, {b.big[2 * kHalf], b.small[2 * kHalf]},
              {b.big[2 * kHalf + 1], b.small[2 * kHalf + 1]});
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] += step[i];
  }
};

// Reading and writing fragments. Row and column offsets are compile-time constants after unrolling:
// rows multiples of 8, columns multiples of 16 (of the depth: of kDepth).
template <Arithmetic kArithmetic>
struct Fragments : Multiply<kArithmetic> {
  using Math = Multiply<kArithmetic>;
  using Fragment = typename Math::Fragment;
  static constexpr int kBytes = element_bytes(kArithmetic);
  static constexpr int kDepth = 32 / kBytes;                      // summed by one instruction
  static constexpr int kBlockChunks = kMmaColumns * kBytes / 16;  // of 8 columns
  static constexpr int kDepthBlocks = kDepth / kMmaColumns;  // C blocks that make an A fragment

  // A: rows row..row + 15, depth from `depth`.
  template <typename TileType>
  __device__ static Fragment a_of_rows(uint32_t tile, int row, int depth, int lane) {
    uint32_t r[4];
    ldmatrix_x4(r, TileType::advance(a_lane_address<TileType>(tile, lane), depth * kBytes / 16) +
                       row * TileType::kRowBytes);
    return Math::prepare(r);
  }

  // B: rows row..row + 15 of the tile are the columns.
  template <typename TileType>
  __device__ static Fragment b_of_rows(uint32_t tile, int row, int depth, int lane) {
    uint32_t r[4];
    ldmatrix_x4(r, TileType::advance(b_lane_address<TileType>(tile, lane), depth * kBytes / 16) +
                       row * TileType::kRowBytes);
    return Math::prepare(r);
  }

  // A in the order of columns: rows row..row + 15, to multiply with b_of_columns.
  template <typename TileType>
  __device__ static Fragment a_of_rows_paired(uint32_t tile, int row, int depth, int lane) {
    if constexpr (kBytes == 2) {
      return a_of_rows<TileType>(tile, row, depth, lane);
    } else {
      const int pair = lane % 4;
      const uint32_t address =
          TileType::advance(tile + TileType::offset(lane / 4, pair / 2) + pair % 2 * 8, depth / 4) +
          row * TileType::kRowBytes;
      const uint2 upper = load_shared_pair(address);
      const uint2 lower = load_shared_pair(address + 8 * TileType::kRowBytes);
      return Math::prepare({upper.x, lower.x, upper.y, lower.y});
    }
  }

  // B: columns column..column + 15 of the tile, summed over rows row..row + kDepth - 1.
  template <typename TileType>
  __device__ static Fragment b_of_columns(uint32_t tile, int row, int column, int lane) {
    uint32_t r[4];
    if constexpr (kBytes == 2) {
      ldmatrix_x4_transposed(r,
                             TileType::advance(a_lane_address<TileType>(tile, lane), column / 8) +
                                 row * TileType::kRowBytes);
    } else {
      read_columns<TileType>(r, tile, row, column, lane);
    }
    return Math::prepare(r);
  }

  // A: rows of A are columns column..column + 15 of the tile, summed over its rows.
  template <typename TileType>
  __device__ static Fragment a_of_columns(uint32_t tile, int row, int column, int lane) {
    uint32_t r[4];
    if constexpr (kBytes == 2) {
      ldmatrix_x4_transposed(r,
                             TileType::advance(b_lane_address<TileType>(tile, lane), column / 8) +
                                 row * TileType::kRowBytes);
    } else {
      uint32_t columns[4];
      read_columns<TileType>(columns, tile, row, column, lane);
      r[0] = columns[0], r[1] = columns[2], r[2] = columns[1], r[3] = columns[3];
    }
    return Math::prepare(r);
  }

  // A from the accumulators of 16 rows and kDepth columns, rounded to the dtype.
  __device__ static void registers_of_scores(uint32_t (&r)[4], const float (*c)[4]) {
    if constexpr (kBytes == 2) {
      using Traits = ElementTraits<Math::kElement>;
      r[0] = Traits::pack(c[0][0], c[0][1]);
      r[1] = Traits::pack(c[0][2], c[0][3]);
      r[2] = Traits::pack(c[1][0], c[1][1]);
      r[3] = Traits::pack(c[1][2], c[1][3]);
    } else {
      r[0] = __float_as_uint(c[0][0]);
      r[1] = __float_as_uint(c[0][2]);
      r[2] = __float_as_uint(c[0][1]);
      r[3] = __float_as_uint(c[0][3]);
    }
  }

  // Those registers into rows row..row + 15, columns from `column`, of a tile.
  template <typename TileType>
  __device__ static void store_scores(const uint32_t (&r)[4], uint32_t tile, int row, int column,
                                      int lane) {
    const int pair = lane % 4;
    if constexpr (kBytes == 2) {
      const uint32_t start = tile + TileType::offset(lane / 4, 0) + pair * 4;
      const uint32_t first = TileType::advance(start, column / 8) + row * TileType::kRowBytes;
      const uint32_t second = TileType::advance(start, column / 8 + 1) + row * TileType::kRowBytes;
      store_shared(first, r[0]);
      store_shared(first + 8 * TileType::kRowBytes, r[1]);
      store_shared(second, r[2]);
      store_shared(second + 8 * TileType::kRowBytes, r[3]);
    } else {
      const uint32_t first =
          TileType::advance(tile + TileType::offset(lane / 4, pair / 2) + pair % 2 * 8,
                            column / 4) +
          row * TileType::kRowBytes;
      store_shared_pair(first, r[0], r[2]);
      store_shared_pair(first + 8 * TileType::kRowBytes, r[1], r[3]);
    }
  }

 private:
  // r[0], r[1]: rows row + 2t, row + 2t + 1 of column + g; r[2], r[3]: of column + 8 + g.
  template <typename TileType>
  __device__ static void read_columns(uint32_t (&r)[4], uint32_t tile, int row, int column,
                                      int lane) {
    const int first_row = 2 * (lane % 4);
    const int chunk = lane / 16;  // column g = lane / 4 lies in chunk g / 4
    const uint32_t inside = tile + lane / 4 % 4 * 4 + row * TileType::kRowBytes;
    const uint32_t even = inside + TileType::offset(first_row, chunk);
    const uint32_t odd = inside + TileType::offset(first_row + 1, chunk);
    r[0] = load_shared(TileType::advance(even, column / 4));
    r[1] = load_shared(TileType::advance(odd, column / 4));
    r[2] = load_shared(TileType::advance(even, column / 4 + 2));
    r[3] = load_shared(TileType::advance(odd, column / 4 + 2));
  }
};

}  // namespace flashstep::attention_cuda
