// For processors that are not x86: bfloat16 is widened to float32.
#include "flashstep/attention/cpu/bf16_dot.h"

namespace flashstep::attention_cpu {

bool has_bf16_dot() { return false; }
void bf16_block(int, int, Side, const Block<uint32_t>&) {}
void bf16_round_left(const float*, int, int, uint32_t*) {}
void bf16_round_transposed(const float*, int, int, uint32_t*) {}

}  // namespace flashstep::attention_cpu
