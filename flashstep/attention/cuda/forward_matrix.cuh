// The two matrix products of one step of the forward kernel: scores = q k^T and out += weights v.
#pragma once

#include "flashstep/attention/cuda/mma.cuh"

namespace flashstep::attention_cuda {

// Fragments that a warp reads ahead of the products that use them. Shared memory answers after some
// 30 cycles, four products take about as long; more read ahead only costs registers (measured: 1,
// 3, 5).
constexpr int kReadAhead = 1;

// Calls read(i, place) kReadAhead calls of use(i, place) ahead, i = 0 .. kCount - 1; `place` is
// where in a ring of kReadAhead + 1 fragments. Everything is unrolled.
template <int kCount, typename Read, typename Use>
__device__ inline void read_ahead(Read read, Use use) {
#pragma unroll
  for (int i = 0; i < kReadAhead && i < kCount; ++i) read(i, i);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i + kReadAhead < kCount) read(i + kReadAhead, (i + kReadAhead) % (kReadAhead + 1));
    use(i, i % (kReadAhead + 1));
  }
}

// Products in a 16-bit dtype.
template <Element kElement>
struct Products {
  using Traits = ElementTraits<kElement>;

  // scores (16 kRowBlocks, 8 kColumnBlocks) = q k^T. `query(b, step, a)` gives the fragment of row
  // block b; k_lane is b_lane_address of the tile of keys.
  template <typename KeyTile, int kRowBlocks, int kColumnBlocks, typename Query>
  __device__ static void scores(float (&scores)[kRowBlocks][kColumnBlocks][4], Query query,
                                uint32_t k_lane) {
    constexpr int kPairs = kColumnBlocks / 2;  // one ldmatrix reads two blocks of 8 keys
    uint32_t k[kReadAhead + 1][4];
    uint32_t q[2][kRowBlocks][4];
    const auto read_query = [&](int step) {
#pragma unroll
      for (int b = 0; b < kRowBlocks; ++b) query(b, 2 * step, q[step % 2][b]);
    };
    read_query(0);
    read_ahead<KeyTile::kChunks / 2 * kPairs>(
        [&](int i, int place) {
          const uint32_t line = KeyTile::advance(k_lane, i / kPairs * 2);
          ldmatrix_x4(k[place], line + i % kPairs * 16 * KeyTile::kRowBytes);
        },
        [&](int i, int place) {
          const int step = i / kPairs, j = i % kPairs * 2;
          if (j == 0 && step + 1 < KeyTile::kChunks / 2) read_query(step + 1);
#pragma unroll
          for (int b = 0; b < kRowBlocks; ++b) {
            Traits::mma(scores[b][j], q[step % 2][b], k[place][0], k[place][1]);
            Traits::mma(scores[b][j + 1], q[step % 2][b], k[place][2], k[place][3]);
          }
        });
  }

  // out += weights v. The accumulator's layout of two neighbouring column blocks is that of an A
  // fragment. v_tile is the tile's address.
  template <typename ValueTile, int kRowBlocks, int kColumnBlocks, int kOutBlocks>
  __device__ static void weighted_values(float (&out)[kRowBlocks][kOutBlocks][4],
                                         const float (&weights)[kRowBlocks][kColumnBlocks][4],
                                         uint32_t v_tile, int lane) {
    constexpr int kPairs = kOutBlocks / 2;
    const uint32_t v_lane = a_lane_address<ValueTile>(v_tile, lane);
    uint32_t v[kReadAhead + 1][4];
    uint32_t p[kRowBlocks][4];
    read_ahead<kColumnBlocks / 2 * kPairs>(
        [&](int i, int place) {
          const uint32_t line = ValueTile::advance(v_lane, i % kPairs * 2);
          ldmatrix_x4_transposed(v[place], line + i / kPairs * 16 * ValueTile::kRowBytes);
        },
        [&](int i, int place) {
          const int j = i / kPairs * 2, n = i % kPairs * 2;
#pragma unroll
          for (int b = 0; b < kRowBlocks; ++b) {
            if (n == 0) pack_weights(p[b], weights[b][j], weights[b][j + 1]);
            Traits::mma(out[b][n], p[b], v[place][0], v[place][1]);
            Traits::mma(out[b][n + 1], p[b], v[place][2], v[place][3]);
          }
        });
  }

  __device__ static void pack_weights(uint32_t (&p)[4], const float (&left)[4],
                                      const float (&right)[4]) {
    p[0] = Traits::pack(left[0], left[1]);
    p[1] = Traits::pack(left[2], left[3]);
    p[2] = Traits::pack(right[0], right[1]);
    p[3] = Traits::pack(right[2], right[3]);
  }
};

// Products of float32 numbers on the TF32 units: each number as the sum of two (mma.cuh), or
// rounded where kSplit is false. The units cut their sums instead of rounding them; so the output
// of one step is summed apart and added by a float32 addition, lest the cuts of all steps add up.
template <bool kSplit>
struct Float32Products {
  __device__ static SplitFragment<4> operand(const uint32_t (&bits)[4]) {
    if constexpr (kSplit) {
      return split_fragment(bits);
    } else {
      SplitFragment<4> rounded;
#pragma unroll
      for (int i = 0; i < 4; ++i) rounded.big[i] = round_to_tf32(bits[i]);
      return rounded;
    }
  }

  // c += a b.
  __device__ static void add_product(float (&c)[4], const SplitFragment<4>& a, uint32_t b0,
                                     uint32_t b1) {
    if constexpr (kSplit) {
      float product[4] = {};
      mma_split(product, a, split_float(b0), split_float(b1));
#pragma unroll
      for (int i = 0; i < 4; ++i) c[i] += product[i];
    } else {
      mma_m16n8k8_tf32(c, a.big, round_to_tf32(b0), round_to_tf32(b1));
    }
  }

  template <typename KeyTile, int kRowBlocks, int kColumnBlocks, typename Query>
  __device__ static void scores(float (&scores)[kRowBlocks][kColumnBlocks][4], Query query,
                                uint32_t k_lane) {
#pragma unroll
    for (int step = 0; step < KeyTile::kChunks; step += 2) {
      SplitFragment<4> q[kRowBlocks];
#pragma unroll
      for (int b = 0; b < kRowBlocks; ++b) {
        uint32_t bits[4];
        query(b, step, bits);
        q[b] = operand(bits);
      }
#pragma unroll
      for (int j = 0; j < kColumnBlocks; j += 2) {
        uint32_t k[4];
        ldmatrix_x4(k, KeyTile::advance(k_lane, step) + 8 * j * KeyTile::kRowBytes);
#pragma unroll
        for (int b = 0; b < kRowBlocks; ++b) {
          add_product(scores[b][j], q[b], k[0], k[1]);
          add_product(scores[b][j + 1], q[b], k[2], k[3]);
        }
      }
    }
  }

  // The depth of a product is 8 keys, in any order. With keys 2t and 2t + 1 in the places t and
  // t + 4 the accumulator's layout is that of an A fragment.
  template <typename ValueTile, int kRowBlocks, int kColumnBlocks, int kOutBlocks>
  __device__ static void weighted_values(float (&out)[kRowBlocks][kOutBlocks][4],
                                         const float (&weights)[kRowBlocks][kColumnBlocks][4],
                                         uint32_t v_tile, int lane) {
    SplitFragment<4> p[kRowBlocks][kColumnBlocks];
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
      for (int j = 0; j < kColumnBlocks; ++j) {
        const float(&w)[4] = weights[b][j];
        p[b][j] = operand({__float_as_uint(w[0]), __float_as_uint(w[2]), __float_as_uint(w[1]),
                           __float_as_uint(w[3])});
      }
    }
    const int row = lane % 4 * 2, column = lane / 4;
    const uint32_t v_even =
        v_tile + ValueTile::offset(row, column / 4) + column % 4 * sizeof(float);
    const uint32_t v_odd =
        v_tile + ValueTile::offset(row + 1, column / 4) + column % 4 * sizeof(float);
#pragma unroll
    for (int n = 0; n < kOutBlocks; ++n) {
      uint32_t v[kColumnBlocks][2];
#pragma unroll
      for (int j = 0; j < kColumnBlocks; ++j) {
        const int rows = 8 * j * ValueTile::kRowBytes;
        v[j][0] = load_shared(ValueTile::advance(v_even, 2 * n) + rows);
        v[j][1] = load_shared(ValueTile::advance(v_odd, 2 * n) + rows);
      }
#pragma unroll
      for (int b = 0; b < kRowBlocks; ++b) add_products(out[b][n], p[b], v);
    }
  }

  // c += sum_j a_j b_j, the smallest products first: the sums cut them least then.
  template <int kCount>
  __device__ static void add_products(float (&c)[4], const SplitFragment<4> (&a)[kCount],
                                      const uint32_t (&b)[kCount][2]) {
    if constexpr (kSplit) {
      float sums[4] = {};
      SplitFragment<2> split[kCount];
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        split[j] = split_fragment(b[j]);
        mma_m16n8k8_tf32(sums, a[j].small, split[j].big[0], split[j].big[1]);
        mma_m16n8k8_tf32(sums, a[j].big, split[j].small[0], split[j].small[1]);
      }
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        mma_m16n8k8_tf32(sums, a[j].big, split[j].big[0], split[j].big[1]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) c[i] += sums[i];
    } else {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        mma_m16n8k8_tf32(c, a[j].big, round_to_tf32(b[j][0]), round_to_tf32(b[j][1]));
      }
    }
  }
};

}  // namespace flashstep::attention_cuda
