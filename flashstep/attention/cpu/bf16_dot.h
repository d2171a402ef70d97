// The bfloat16 dot product of AVX-512 (vdpbf16ps), which Highway 1.0.3 does not know. A word is a
// pair of bfloat16, the lower half first in depth; vectors have 16 words.
#pragma once

#include <cstdint>

#include "flashstep/attention/cpu/product.h"

namespace flashstep::attention_cpu {

// Whether the CPU has the instruction and the system keeps 512-bit registers. AVX-512 alone does
// not imply it.
bool has_bf16_dot();

// `rows` in 12, 8, 4; vectors in 1, 2.
void bf16_block(int rows, int vectors, Side side, const Block<uint32_t>& block);

// Scores rounded to bfloat16, as left operands. Columns are taken up to the end of a vector.
//   plain: out[r * kStride + c / 2] holds columns c, c + 1 of row r
//   transposed: out[r / 2 * kStride + c] holds rows r, r + 1 of column c; rows must be even
void bf16_round_left(const float* scores, int rows, int columns, uint32_t* out);
void bf16_round_transposed(const float* scores, int rows, int columns, uint32_t* out);

}  // namespace flashstep::attention_cpu
