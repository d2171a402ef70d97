#include "flashstep/products/cpu/packed.h"

#include <algorithm>
#include <immintrin.h>

// The flags of this file, on its functions: as compiler options they would also reach the inline
// functions of headers, of which the linker keeps one copy for all machines.
#define FLASHSTEP_AVX2 __attribute__((target("avx2,fma")))

namespace flashstep::packed {
namespace {

// The 6 x 16 tile of d: sums over `depth` steps of a packed column of a by a packed row of b.
// `rows` and `columns` are what d has of the tile.
FLASHSTEP_AVX2 void tile(const float* __restrict a, const float* __restrict b, int64_t depth,
                         float* d, int64_t d_stride, int64_t rows, int64_t columns, bool adds) {
  __m256 sums[kTileRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kTileRows; ++r) {
    sums[r][0] = sums[r][1] = _mm256_setzero_ps();
  }
  for (int64_t r = 0; r < rows; ++r) {  // 6 % faster, since d has left the caches
    __builtin_prefetch(d + r * d_stride, /*rw=*/1);
    __builtin_prefetch(d + r * d_stride + columns - 1, /*rw=*/1);
  }
#pragma GCC unroll 4
  for (int64_t k = 0; k < depth; ++k, a += kTileRows, b += kTileColumns) {
    const __m256 left = _mm256_load_ps(b), right = _mm256_load_ps(b + 8);
#pragma GCC unroll 6
    for (int r = 0; r < kTileRows; ++r) {
      const __m256 element = _mm256_broadcast_ss(a + r);
      sums[r][0] = _mm256_fmadd_ps(element, left, sums[r][0]);
      sums[r][1] = _mm256_fmadd_ps(element, right, sums[r][1]);
    }
  }
  if (rows == kTileRows && columns == kTileColumns) {
#pragma GCC unroll 6
    for (int r = 0; r < kTileRows; ++r, d += d_stride) {
      if (adds) {
        sums[r][0] = _mm256_add_ps(_mm256_loadu_ps(d), sums[r][0]);
        sums[r][1] = _mm256_add_ps(_mm256_loadu_ps(d + 8), sums[r][1]);
      }
      _mm256_storeu_ps(d, sums[r][0]);
      _mm256_storeu_ps(d + 8, sums[r][1]);
    }
    return;
  }
  alignas(32) float whole[kTileRows][kTileColumns];
#pragma GCC unroll 6
  for (int r = 0; r < kTileRows; ++r) {
    _mm256_store_ps(whole[r], sums[r][0]);
    _mm256_store_ps(whole[r] + 8, sums[r][1]);
  }
  for (int64_t r = 0; r < rows; ++r, d += d_stride) {
    for (int64_t c = 0; c < columns; ++c) d[c] = adds ? d[c] + whole[r][c] : whole[r][c];
  }
}

FLASHSTEP_AVX2 inline void transpose_8x8(__m256 (&x)[8]) {
  __m256 pairs[8], fours[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    x[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

// kTiles tiles of lines that lie side by side, in the order of memory. By whole registers, but for
// the last step: behind it there may be no memory.
template <int kWidth, int kTiles>
FLASHSTEP_AVX2 void pack_neighbours(const float* in, int64_t along, int64_t depth, float* out) {
  constexpr int64_t kAhead = 8;
  for (int64_t k = 0; k + 1 < depth; ++k, in += along, out += kWidth) {
#pragma GCC unroll 8
    for (int i = 0; i < kTiles * kWidth; i += 16) __builtin_prefetch(in + kAhead * along + i);
#pragma GCC unroll 16
    for (int t = 0; t < kTiles; ++t) {
#pragma GCC unroll 2
      for (int i = 0; i < kWidth; i += 8) {
        _mm256_storeu_ps(out + t * kTileStride<kWidth> + i, _mm256_loadu_ps(in + t * kWidth + i));
      }
    }
  }
  for (int t = 0; t < kTiles; ++t) {
    std::copy_n(in + t * kWidth, kWidth, out + t * kTileStride<kWidth>);
  }
}

// All whole tiles of such lines, kTiles at a time, the rest by fewer. Returns how many lines.
template <int kWidth, int kTiles>
int64_t pack_all_neighbours(const float* in, int64_t along, int64_t lines, int64_t depth,
                            float* out) {
  constexpr int kTogether = kTiles * kWidth;
  int64_t line = 0;
  for (; line + kTogether <= lines; line += kTogether) {
    pack_neighbours<kWidth, kTiles>(in + line, along, depth, out);
    out += kTiles * kTileStride<kWidth>;
  }
  if constexpr (kTiles > 1) {
    line += pack_all_neighbours<kWidth, kTiles / 2>(in + line, along, lines - line, depth, out);
  }
  return line;
}

// A tile of lines whose steps lie side by side. Of a width of 6 two more columns are written, and
// written over by the next step's.
template <int kWidth>
FLASHSTEP_AVX2 int64_t pack_transposed(const float* in, int64_t across, int64_t depth, float* out) {
  int64_t k = 0;
  for (; k + 8 < depth; k += 8) {
#pragma GCC unroll 2
    for (int first = 0; first < kWidth; first += 8) {
      __m256 x[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        x[i] = _mm256_loadu_ps(in + std::min(first + i, kWidth - 1) * across + k);
      }
      transpose_8x8(x);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) _mm256_storeu_ps(out + (k + i) * kWidth + first, x[i]);
    }
  }
  return k;
}

// Lines of an operand, rows of a or columns of b, as the kernel reads them, a tile of kWidth after
// the other: out[k * kWidth + i] = in[i * across + k * along], zeros for lines that are not there.
template <int kWidth>
void pack(const float* in, int64_t across, int64_t along, int64_t lines, int64_t depth,
          float* out) {
  int64_t line = 0;
  if (across == 1 && along > 1) {  // not the same step again and again, whose end is the memory's
    line = pack_all_neighbours<kWidth, kBlockRows / kWidth>(in, along, lines, depth, out);
  }
  for (; line < lines; line += kWidth) {
    const float* const from = in + line * across;
    float* const to = out + line / kWidth * kTileStride<kWidth>;
    const int64_t count = std::min<int64_t>(kWidth, lines - line);
    const bool is_whole = count == kWidth && along == 1;
    int64_t k = is_whole ? pack_transposed<kWidth>(from, across, depth, to) : 0;
    for (; k < depth; ++k) {
      for (int64_t i = 0; i < kWidth; ++i) {
        to[k * kWidth + i] = i < count ? from[i * across + k * along] : 0.0f;
      }
    }
  }
}

}  // namespace

bool is_available() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

void multiply(const Product& p, float* workspace) {
  float* const packed_b = workspace;
  float* const packed_a = workspace + kBlockColumns / kTileColumns * kTileStride<kTileColumns>;
  for (int64_t column = 0; column < p.columns; column += kBlockColumns) {
    const int64_t columns = std::min(kBlockColumns, p.columns - column);
    for (int64_t k = 0; k < p.depth; k += kBlockDepth) {
      const int64_t depth = std::min(kBlockDepth, p.depth - k);
      const bool adds = p.adds || k > 0;
      pack<kTileColumns>(p.b.data + k * p.b.row_stride + column * p.b.column_stride,
                         p.b.column_stride, p.b.row_stride, columns, depth, packed_b);
      for (int64_t row = 0; row < p.rows; row += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, p.rows - row);
        pack<kTileRows>(p.a.data + row * p.a.row_stride + k * p.a.column_stride, p.a.row_stride,
                        p.a.column_stride, rows, depth, packed_a);
        for (int64_t c = 0; c < columns; c += kTileColumns) {
          for (int64_t r = 0; r < rows; r += kTileRows) {
            tile(packed_a + r / kTileRows * kTileStride<kTileRows>,
                 packed_b + c / kTileColumns * kTileStride<kTileColumns>, depth,
                 p.d + (row + r) * p.d_stride + column + c, p.d_stride,
                 std::min<int64_t>(kTileRows, rows - r),
                 std::min<int64_t>(kTileColumns, columns - c), adds);
          }
        }
      }
    }
  }
}

}  // namespace flashstep::packed
