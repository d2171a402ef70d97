// Fragments of the matrix instructions and how they are read from tiles (tile.cuh).
//
// One step multiplies 16 rows of A with 8 columns of B over 32 bytes (two chunks): 16 numbers of 16
// bits (m16n8k16) or 8 of float32 (m16n8k8), so that both are read alike. Lane l of the warp, with
// g = l / 4 and t = l % 4, holds
//   A  (16, depth): a[0], a[1] the 4 bytes t of the first chunk of rows g and g + 8; a[2], a[3]
//   those
//                   of the second chunk
//   B  (depth, 8):  b[0], b[1] the 4 bytes t of the first and second chunk of column g
//   C  (16, 8):     c[0], c[1] columns 2t, 2t + 1 of row g; c[2], c[3] those of row g + 8
// Source: NVIDIA, "PTX ISA", matrix fragments for mma.m16n8k16 and mma.m16n8k8.
#pragma once

#include <cstdint>

#include "flashstep/attention/cuda/element.cuh"
#include "flashstep/attention/cuda/ptx.cuh"
#include "flashstep/attention/cuda/tile.cuh"

namespace flashstep::attention_cuda {

constexpr int kWarp = 32;
constexpr int kMmaRows = 16;
constexpr int kMmaColumns = 8;
constexpr unsigned kFullWarp = 0xffffffffu;

// Where this lane reads its share of a fragment, for chunk 0; Tile::advance moves along the row,
// and a multiple of 8 rows is an offset of as many Tile::kRowBytes.
//
// As A: ldmatrix_x4 gives a[0..3] of 16 rows. Also, transposed, as B where the depth runs along
// the rows: 16 rows x 2 chunks of 16-bit numbers give b[0], b[1] of chunk c and b[0], b[1] of c +
// 1, in this order.
template <typename TileType>
__device__ inline uint32_t a_lane_address(uint32_t tile, int lane) {
  return tile + TileType::offset(lane % 16, lane / 16);
}

// As B where the columns are rows of the tile: ldmatrix_x4 gives b[0], b[1] of rows 0..7 and b[0],
// b[1] of rows 8..15. Also, transposed, as A where the depth runs along the rows: 16 rows x 2
// chunks of 16-bit numbers, read so, give a[0..3] of the 16 columns.
template <typename TileType>
__device__ inline uint32_t b_lane_address(uint32_t tile, int lane) {
  return tile + TileType::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

template <int kCount>  // 2 or 4; as aligned as they are long
__device__ inline void load_floats(float (&to)[kCount], const float* from) {
  static_assert(kCount == 2 || kCount == 4);
  if constexpr (kCount == 4) {
    const float4 x = __ldg(reinterpret_cast<const float4*>(from));
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  } else {
    const float2 x = __ldg(reinterpret_cast<const float2*>(from));
    to[0] = x.x, to[1] = x.y;
  }
}

// The angles by which rope turned the pairs (2i, 2i + 1) of a row; null: it did not.
struct RowRotation {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

// One row of kBlocks C fragments to memory, below `columns` (a multiple of 8): value(block, i) is
// this lane's number i of a block. 16-bit numbers are rounded and, of a row that was turned, turned
// back. Lanes exchange 16-bit numbers first, so that each writes up to
// 16 bytes at once: stores of 4 take the L2 cache longer than a short pass takes to compute. `row`
// is null where nothing is written. All lanes of the warp take part.
template <Element kElement, int kBlocks, typename Value>
__device__ inline void put_row(char* row, int columns, const Value& value,
                               const RowRotation& rotation = {}) {
  const int lane_of_row = threadIdx.x % 4;
  if constexpr (kElement == Element::kFloat32) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (row != nullptr && 8 * block < columns)
        ElementTraits<kElement>::store_pair(row + (8 * block + 2 * lane_of_row) * 4,
                                            value(block, 0), value(block, 1));
    }
  } else {
    constexpr int kWidth = kBlocks % 4 == 0 ? 4 : 2;  // lanes that exchange, and words of a store
    static_assert(kBlocks % kWidth == 0);
    const bool is_turned = rotation.cos != nullptr;
    float cos[kBlocks / kWidth][kWidth], sin[kBlocks / kWidth][kWidth];
    if (is_turned) {  // all loads before the first is waited for
#pragma unroll
      for (int block = 0; block < kBlocks; block += kWidth) {
        const int pair = (block + lane_of_row % kWidth) * 4 + lane_of_row / kWidth * kWidth;
        const int at = min(pair, columns / 2 - kWidth);
        load_floats(cos[block / kWidth], rotation.cos + at);
        load_floats(sin[block / kWidth], rotation.sin + at);
      }
    }
#pragma unroll
    for (int block = 0; block < kBlocks; block += kWidth) {
      uint32_t words[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        words[i] = ElementTraits<kElement>::pack(value(block + i, 0), value(block + i, 1));
      }
      // The words of kWidth lanes are transposed: lane i gets all of block i.
#pragma unroll
      for (int bit = 1; bit < kWidth; bit *= 2) {
        const bool is_upper = lane_of_row & bit;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          if (i & bit) continue;
          const uint32_t other =
              __shfl_xor_sync(kFullWarp, is_upper ? words[i] : words[i + bit], bit);
          (is_upper ? words[i] : words[i + bit]) = other;
        }
      }
      if (is_turned) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const float2 pair = ElementTraits<kElement>::unpack(words[i]);
          const float c = cos[block / kWidth][i], s = -sin[block / kWidth][i];
          words[i] =
              ElementTraits<kElement>::pack(c * pair.x - s * pair.y, s * pair.x + c * pair.y);
        }
      }
      const int at = block + lane_of_row % kWidth;
      if (row != nullptr && 8 * at < columns) {
        char* const to = row + 16 * at + lane_of_row / kWidth * 4 * kWidth;
        if constexpr (kWidth == 4)
          *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
        else
          *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
      }
    }
  }
}

// TF32 keeps 11 significant bits of float32; half of the last one is bit 12. The matrix units cut
// the bits below, so that adding it rounds to nearest, ties away from zero.
constexpr uint32_t kHalfTf32Bit = 0x1000u;

// A NaN stays as it is: the GPU's own, 0x7fffffff, would become -0.
__device__ inline uint32_t round_to_tf32(uint32_t bits) {
  return isnan(__uint_as_float(bits)) ? bits : bits + kHalfTf32Bit;
}

// float32 as the sum of two TF32 numbers: x = big + small, big rounded to nearest. The rest has at
// most 12 bits and a sign; the units cut it to 11, which is x's last bit at most. Three products of
// them, without small * small, are a float32 product to 2^-22. The rest of a NaN is NaN, whatever
// big became. Source: Markidis et al., "NVIDIA Tensor Core Programmability, Performance &
// Precision" (2018).
struct SplitFloat {
  uint32_t big, small;
};

__device__ inline SplitFloat split_float(uint32_t bits) {
  const uint32_t big = (bits + kHalfTf32Bit) & 0xffffe000u;
  return {big, __float_as_uint(__uint_as_float(bits) - __uint_as_float(big))};
}

template <int kCount>
struct SplitFragment {
  uint32_t big[kCount], small[kCount];
};

template <int kCount>
__device__ inline SplitFragment<kCount> split_fragment(const uint32_t (&bits)[kCount]) {
  SplitFragment<kCount> split;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const SplitFloat parts = split_float(bits[i]);
    split.big[i] = parts.big;
    split.small[i] = parts.small;
  }
  return split;
}

// c += a b to float32 accuracy; the smallest products first.
__device__ inline void mma_split(float (&c)[4], const SplitFragment<4>& a, SplitFloat b0,
                                 SplitFloat b1) {
  mma_m16n8k8_tf32(c, a.small, b0.big, b1.big);
  mma_m16n8k8_tf32(c, a.big, b0.small, b1.small);
  mma_m16n8k8_tf32(c, a.big, b0.big, b1.big);
}

}  // namespace flashstep::attention_cuda
