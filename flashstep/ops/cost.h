// Memory traffic of the operators: the only home of these formulas. Torch-free.
#pragma once

#include <algorithm>
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

// Rows of logits that linear_cross_entropy holds at once, of R: as many as 64 MiB hold, for larger
// chunks make its products no faster; but at least 4,096, because each chunk adds to the weight's
// gradient in float32 (8 C V bytes, beside 6 C V operations a row) and fewer rows give the product
// of x's gradient less tiles than a GPU has multiprocessors. On an H200 steps of V 50,304 and
// 151,936 take 1 to 2.5 % longer at 2,048 rows, and none of V 50,304 is faster at 8,192
// (reports/training_step_h200). Chunks are even, and multiples of a product's tile.
inline int64_t linear_cross_entropy_rows(int64_t rows, int64_t classes, int64_t element_bytes) {
  constexpr int64_t kChunkBytes = 64 << 20, kLeastRows = 4096, kTile = 128;
  const int64_t most =
      std::max(kLeastRows, kChunkBytes / (classes * element_bytes) / kTile * kTile);
  const int64_t chunks = (rows + most - 1) / most;
  const int64_t even = (rows + chunks - 1) / chunks;
  return std::min(rows, (even + kTile - 1) / kTile * kTile);
}

// The same on a CPU, of float32: as many as 16 MiB hold, so that a cache has them from their
// product to those of the gradients; but at least 512, because of what each chunk adds. On two Zen
// 3 cores 128 to 256 rows of V 10,000 take 1 to 19 % longer, and all at once 7 to 36 %.
inline int64_t linear_cross_entropy_rows_on_cpu(int64_t rows, int64_t classes) {
  constexpr int64_t kChunkBytes = 16 << 20, kLeastRows = 512;
  return std::min(rows, std::max(kLeastRows, kChunkBytes / (classes * 4)));
}

// AdamW's update of `numel` float32 parameters: gradient, parameter and both moments read;
// parameter, moments and, of so many bytes, a copy written.
inline double adamw_bytes(int64_t numel, int64_t gradient_bytes, int64_t copy_bytes) {
  return static_cast<double>(numel) *
         static_cast<double>(gradient_bytes + 3 * 4 + 3 * 4 + copy_bytes);
}
inline double grad_norm_bytes(int64_t numel, int64_t gradient_bytes) {
  return static_cast<double>(numel) * static_cast<double>(gradient_bytes);
}

// Least traffic of what goes over N elements once. Rotary embedding: x read, y written, and the
// same of the gradients. SwiGLU: a and b read, y written; backward dy, a and b read, both gradients
// written. Cross-entropy: the logits read; backward read, and their gradient written.
inline double rope_bytes(int64_t elements, int64_t element_bytes, bool backward) {
  return (backward ? 4.0 : 2.0) * static_cast<double>(elements * element_bytes);
}
inline double swiglu_bytes(int64_t elements, int64_t element_bytes, bool backward) {
  return (backward ? 8.0 : 3.0) * static_cast<double>(elements * element_bytes);
}
inline double cross_entropy_bytes(int64_t logits, int64_t element_bytes, bool backward) {
  return (backward ? 3.0 : 1.0) * static_cast<double>(logits * element_bytes);
}

// R rows of C elements read and written; backward the same of the gradients, of which the weight's
// is dense: V rows are written.
inline double embedding_bytes(int64_t rows, int64_t width, int64_t vocab, int64_t element_bytes,
                              bool backward) {
  const double forward = 2.0 * static_cast<double>(rows) * static_cast<double>(width);
  const double more = static_cast<double>(rows + vocab) * static_cast<double>(width);
  return (forward + (backward ? more : 0)) * static_cast<double>(element_bytes);
}

// x (R, C) and weight (V, C) read, backward their gradients written; the logits need not exist. And
// its products: 2 R C V, three times that with backward.
inline double linear_cross_entropy_bytes(int64_t rows, int64_t width, int64_t vocab,
                                         int64_t element_bytes, bool backward) {
  return (backward ? 2.0 : 1.0) * static_cast<double>(rows + vocab) *
         static_cast<double>(width * element_bytes);
}
inline double linear_cross_entropy_flops(int64_t rows, int64_t width, int64_t vocab,
                                         bool backward) {
  return (backward ? 6.0 : 2.0) * static_cast<double>(rows) * static_cast<double>(width) *
         static_cast<double>(vocab);
}

// Rows that Muon computes at once of a symmetric (N, N), as far as the diagonal and rounded up to a
// product's tile; N where the whole is computed. On an H200 quarters of 2,048, 2,560 and 4,096 take
// 4, 8 and 20 % less time, parts of 1,024 and 1,600 more than the whole
// (reports/training_step_h200).
inline int64_t muon_block_rows(int64_t n) {
  constexpr int64_t kLeastRows = 2048, kBlocks = 4, kTile = 128;
  return n < kLeastRows ? n : (n / kBlocks + kTile - 1) / kTile * kTile;
}

// Muon's update: the products of the iterations that orthogonalize a (M, N), of which two in three
// are symmetric.
inline constexpr int64_t kMuonIterations = 5;
inline double muon_flops(int64_t rows, int64_t columns) {
  const int64_t least = std::min(rows, columns);
  const auto m = static_cast<double>(least), n = static_cast<double>(std::max(rows, columns));
  double elements = 0;  // of a symmetric one that are computed
  for (int64_t begin = 0; begin < least; begin += muon_block_rows(least)) {
    const int64_t end = std::min(begin + muon_block_rows(least), least);
    elements += static_cast<double>(end - begin) * static_cast<double>(end);
  }
  return static_cast<double>(kMuonIterations) * (2 * elements * (n + m) + 2 * m * m * n);
}
// What the update must move besides: gradient and momentum read, momentum and a bfloat16 direction
// written; direction and parameter read, parameter and copy written.
inline double muon_bytes(int64_t numel, int64_t gradient_bytes, int64_t copy_bytes) {
  return static_cast<double>(numel) *
         static_cast<double>(gradient_bytes + 2 * 4 + 2 * 2 + 2 * 4 + copy_bytes);
}
// Elements of matrices that are orthogonalized at once, but for a larger one alone: enough for a
// GPU's every multiprocessor. In bfloat16 an update holds at most kMuonBytes for each.
inline constexpr int64_t kMostMuonElements = int64_t{1} << 26;
inline constexpr double kMuonBytes = 10;

}  // namespace flashstep
