// A product of float32 by AVX2 on one thread. Both operands are copied, a block at a time, into the
// order in which the kernel reads them, so that it reads caches and not memory (Goto and van de
// Geijn, Anatomy of High-Performance Matrix Multiplication, 2008). No torch headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashstep::packed {

// The kernel's tile of d, in registers over a block of the depth: 12 of AVX2's 16 registers, beside
// a row of b (2) and an element of a.
constexpr int kTileRows = 6, kTileColumns = 16;

// What is packed at once: a tile's columns of b stay in the first-level cache (16 KiB of 32), the
// rows of a in the second (96 KiB), the columns of b in the third (1 MiB).
constexpr int64_t kBlockDepth = 256, kBlockRows = 16 * kTileRows, kBlockColumns = 1024;

// From one packed tile to the next, in floats; a cache line more than a tile, since lines a power
// of two apart would share few places of the first-level cache (twice the time of packing a).
template <int kWidth>
constexpr int64_t kTileStride = kBlockDepth* kWidth + 16;

constexpr size_t kWorkspaceBytes =
    sizeof(float) * static_cast<size_t>(kBlockRows / kTileRows * kTileStride<kTileRows> +
                                        kBlockColumns / kTileColumns * kTileStride<kTileColumns>);

// Element (i, j) is data[i * row_stride + j * column_stride].
struct Matrix {
  const float* data;
  int64_t row_stride, column_stride;
};

// d = a b, or d += a b.
struct Product {
  Matrix a, b;                   // (rows, depth), (depth, columns)
  float* d;                      // (rows, columns), its rows dense
  int64_t d_stride;              // between rows
  int64_t rows, columns, depth;  // at least 1
  bool adds;
};

// Whether the processor has AVX2 and FMA.
bool is_available();

// The order of an element's sum depends on the depth alone. `workspace` has kWorkspaceBytes,
// aligned to 32.
void multiply(const Product& product, float* workspace);

}  // namespace flashstep::packed
