#include "flashstep/attention/cpu/bf16_dot.h"

#include <immintrin.h>

#include "flashstep/attention/cpu/tile.h"

// The flags of this file, on its functions: as compiler options they would also reach the inline
// functions of headers, of which the linker keeps one copy for all machines.
#define FLASHSTEP_BF16_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))

namespace flashstep::attention_cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kPanel = 2 * kLanes;

template <int kRows, int kVectors, Side kSide>
FLASHSTEP_BF16_TARGET void block(const Block<uint32_t>& b) {
  constexpr int kRowStep = kSide == Side::kPlain ? kStride : 1;
  constexpr int kDepthStep = kSide == Side::kPlain ? 1 : kStride;
  __m512 sums[kRows][kVectors];
  float* const first_out = b.out;  // beside b, whose fields the stores might change
  const int64_t out_stride = b.out_stride;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = _mm512_setzero_ps();
    }
  }
  const uint32_t* __restrict left = b.left;
  const uint32_t* __restrict right = b.right;
  for (int64_t k = 0; k < b.depth; ++k, left += kDepthStep, right += kPanel) {
    __m512bh columns[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      columns[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(right + v * kLanes));
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto pair =
          reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(left[r * kRowStep])));
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], pair, columns[v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      float* out = first_out + r * out_stride + v * kLanes;
      if (b.update == Update::kAdd) {
        sums[r][v] = _mm512_add_ps(_mm512_loadu_ps(out), sums[r][v]);
      } else if (b.update == Update::kScaleAndAdd) {
        sums[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(b.factor[r]), _mm512_loadu_ps(out), sums[r][v]);
      }
      _mm512_storeu_ps(out, sums[r][v]);
    }
  }
}

template <int kVectors, Side kSide>
void block_of_rows(int rows, const Block<uint32_t>& b) {
  if (rows == 12) return block<12, kVectors, kSide>(b);
  if (rows == 8) return block<8, kVectors, kSide>(b);
  block<4, kVectors, kSide>(b);
}

}  // namespace

bool has_bf16_dot() {
  // The compiler's run-time library sets this only where XCR0 says that ZMM registers are kept.
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

void bf16_block(int rows, int vectors, Side side, const Block<uint32_t>& b) {
  if (side == Side::kPlain) {
    return vectors == 2 ? block_of_rows<2, Side::kPlain>(rows, b)
                        : block_of_rows<1, Side::kPlain>(rows, b);
  }
  vectors == 2 ? block_of_rows<2, Side::kTransposed>(rows, b)
               : block_of_rows<1, Side::kTransposed>(rows, b);
}

FLASHSTEP_BF16_TARGET void bf16_round_left(const float* scores, int rows, int columns,
                                           uint32_t* out) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; c += kLanes) {
      const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(scores + r * kStride + c));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + r * kStride + c / 2),
                          reinterpret_cast<__m256i>(rounded));
    }
  }
}

// The masked forms because GCC 12 warns of uninitialized values within the plain ones.
FLASHSTEP_BF16_TARGET void bf16_round_transposed(const float* scores, int rows, int columns,
                                                 uint32_t* out) {
  constexpr __mmask16 kAll = 0xFFFF;
  for (int r = 0; r < rows; r += 2) {
    const float* row = scores + r * kStride;
    for (int c = 0; c < columns; c += kLanes) {
      const __m256bh even = _mm512_cvtneps_pbh(_mm512_loadu_ps(row + c));
      const __m256bh odd = _mm512_cvtneps_pbh(_mm512_loadu_ps(row + kStride + c));
      const __m512i low = _mm512_maskz_cvtepu16_epi32(kAll, reinterpret_cast<__m256i>(even));
      const __m512i high = _mm512_maskz_cvtepu16_epi32(kAll, reinterpret_cast<__m256i>(odd));
      const __m512i pairs = _mm512_or_si512(low, _mm512_maskz_slli_epi32(kAll, high, 16));
      _mm512_storeu_si512(out + r / 2 * kStride + c, pairs);
    }
  }
}

}  // namespace flashstep::attention_cpu
