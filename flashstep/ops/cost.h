// Memory traffic of norms and updates: the only home of these formulas. Torch-free.
#pragma once

#include <cstdint>

namespace flashstep {

// The least that a norm of R rows of C elements must move through memory: x read and y written;
// backward x and dy read and dx written. The weight and what belongs to a whole row are a C-th or
// an R-th of that, and left out.
inline double norm_forward_bytes(int64_t rows, int64_t width, int64_t element_bytes) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(width * element_bytes);
}
inline double norm_backward_bytes(int64_t rows, int64_t width, int64_t element_bytes) {
  return 1.5 * norm_forward_bytes(rows, width, element_bytes);
}

// Logits that linear_cross_entropy holds at once: larger chunks make its products no faster.
inline constexpr int64_t kLogitsChunkBytes = 64 << 20;

// AdamW's update of `numel` float32 parameters: gradient, parameter and both moments read;
// parameter, moments and, of so many bytes, a copy written.
inline double adamw_bytes(int64_t numel, int64_t gradient_bytes, int64_t copy_bytes) {
  return static_cast<double>(numel) *
         static_cast<double>(gradient_bytes + 3 * 4 + 3 * 4 + copy_bytes);
}
inline double grad_norm_bytes(int64_t numel, int64_t gradient_bytes) {
  return static_cast<double>(numel) * static_cast<double>(gradient_bytes);
}

}  // namespace flashstep
