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

// The two ways in which ldmatrix's lanes lie on rows and chunks (mma.cuh). The registers of a B
// fragment must be neighbours, so that each operand has its own.
enum class Order { kA, kB };

// A lane, and where it reads and writes 16-bit fragments: bytes from the start of a tile, found
// once (the exchange of chunks takes several instructions). Tiles of kDimBytes a row are read at
// `rows`, tiles of scores at `scores`, in both orders.
template <int kDimBytes>
struct Lane {
  int index;
  uint32_t rows[2], scores[2], stores;

  template <typename TileType, Order kOrder>
  __device__ uint32_t start() const {
    if constexpr (TileType::kRowBytes == kDimBytes) {
      return rows[static_cast<int>(kOrder)];
    } else {
      return scores[static_cast<int>(kOrder)];
    }
  }
};

// Comes from another lane as far as the compiler knows: kept in a register, not computed again.
__device__ inline uint32_t keep(uint32_t value, int lane) {
  return __shfl_sync(kFullWarp, value, lane);
}

template <typename DimTile, typename ScoreTile>
__device__ inline Lane<DimTile::kRowBytes> make_lane(int index) {
  return {index,
          {keep(a_lane_address<DimTile>(0, index), index),
           keep(b_lane_address<DimTile>(0, index), index)},
          {keep(a_lane_address<ScoreTile>(0, index), index),
           keep(b_lane_address<ScoreTile>(0, index), index)},
          keep(ScoreTile::offset(index / 4, 0) + index % 4 * 4, index)};
}

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
  template <typename TileType, typename LaneType>
  __device__ static Fragment a_of_rows(uint32_t tile, int row, int depth, const LaneType& lane) {
    uint32_t r[4];
    ldmatrix_x4(r, address<TileType, Order::kA>(tile, row, depth * kBytes / 16, lane));
    return Math::prepare(r);
  }

  // B: rows row..row + 15 of the tile are the columns.
  template <typename TileType, typename LaneType>
  __device__ static Fragment b_of_rows(uint32_t tile, int row, int depth, const LaneType& lane) {
    uint32_t r[4];
    ldmatrix_x4(r, address<TileType, Order::kB>(tile, row, depth * kBytes / 16, lane));
    return Math::prepare(r);
  }

  // A in the order of columns: rows row..row + 15, to multiply with b_of_columns.
  template <typename TileType, typename LaneType>
  __device__ static Fragment a_of_rows_paired(uint32_t tile, int row, int depth,
                                              const LaneType& lane) {
    if constexpr (kBytes == 2) {
      return a_of_rows<TileType>(tile, row, depth, lane);
    } else {
      const int pair = lane.index % 4;
      const uint32_t start = tile + TileType::offset(lane.index / 4, pair / 2) + pair % 2 * 8;
      const uint32_t upper_row = TileType::advance(start, depth / 4) + row * TileType::kRowBytes;
      const uint2 upper = load_shared_pair(upper_row);
      const uint2 lower = load_shared_pair(upper_row + 8 * TileType::kRowBytes);
      return Math::prepare({upper.x, lower.x, upper.y, lower.y});
    }
  }

  // B: columns column..column + 15 of the tile, summed over rows row..row + kDepth - 1.
  template <typename TileType, typename LaneType>
  __device__ static Fragment b_of_columns(uint32_t tile, int row, int column,
                                          const LaneType& lane) {
    uint32_t r[4];
    if constexpr (kBytes == 2) {
      ldmatrix_x4_transposed(r, address<TileType, Order::kA>(tile, row, column / 8, lane));
    } else {
      read_columns<TileType>(r, tile, row, column, lane);
    }
    return Math::prepare(r);
  }

  // A: rows of A are columns column..column + 15 of the tile, summed over its rows.
  template <typename TileType, typename LaneType>
  __device__ static Fragment a_of_columns(uint32_t tile, int row, int column,
                                          const LaneType& lane) {
    uint32_t r[4];
    if constexpr (kBytes == 2) {
      ldmatrix_x4_transposed(r, address<TileType, Order::kB>(tile, row, column / 8, lane));
      return Math::prepare(r);
    } else {
      read_columns<TileType>(r, tile, row, column, lane);
      return Math::prepare({r[0], r[2], r[1], r[3]});
    }
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
  template <typename TileType, typename LaneType>
  __device__ static void store_scores(const uint32_t (&r)[4], uint32_t tile, int row, int column,
                                      const LaneType& lane) {
    const uint32_t rows = tile + row * TileType::kRowBytes;
    if constexpr (kBytes == 2) {
      const uint32_t first = rows + TileType::advance(lane.stores, column / 8);
      const uint32_t second = rows + TileType::advance(lane.stores, column / 8 + 1);
      store_shared(first, r[0]);
      store_shared(first + 8 * TileType::kRowBytes, r[1]);
      store_shared(second, r[2]);
      store_shared(second + 8 * TileType::kRowBytes, r[3]);
    } else {
      const int pair = lane.index % 4;
      const uint32_t start = TileType::offset(lane.index / 4, pair / 2) + pair % 2 * 8;
      const uint32_t first = rows + TileType::advance(start, column / 4);
      store_shared_pair(first, r[0], r[2]);
      store_shared_pair(first + 8 * TileType::kRowBytes, r[1], r[3]);
    }
  }

 private:
  template <typename TileType, Order kOrder, typename LaneType>
  __device__ static uint32_t address(uint32_t tile, int row, int chunk, const LaneType& lane) {
    uint32_t start;
    if constexpr (kBytes == 2) {
      start = lane.template start<TileType, kOrder>();
    } else {
      start = kOrder == Order::kA ? a_lane_address<TileType>(0, lane.index)
                                  : b_lane_address<TileType>(0, lane.index);
    }
    return TileType::advance(start, chunk) + (tile + row * TileType::kRowBytes);
  }

  // float32: rows row + 2t, row + 2t + 1 of column + g (r[0], r[1]) and of column + 8 + g (r[2],
  // r[3]).
  template <typename TileType, typename LaneType>
  __device__ static void read_columns(uint32_t (&r)[4], uint32_t tile, int row, int column,
                                      const LaneType& lane) {
    const int first_row = 2 * (lane.index % 4);
    const int chunk = lane.index / 16;  // column g = lane / 4 lies in chunk g / 4
    const uint32_t inside = tile + lane.index / 4 % 4 * 4 + row * TileType::kRowBytes;
    const uint32_t even = TileType::offset(first_row, chunk);
    const uint32_t odd = TileType::offset(first_row + 1, chunk);
    r[0] = load_shared(inside + TileType::advance(even, column / 4));
    r[1] = load_shared(inside + TileType::advance(odd, column / 4));
    r[2] = load_shared(inside + TileType::advance(even, column / 4 + 2));
    r[3] = load_shared(inside + TileType::advance(odd, column / 4 + 2));
  }
};

}  // namespace flashstep::attention_cuda
