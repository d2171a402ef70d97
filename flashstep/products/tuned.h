// Which of cuBLASLt's algorithms products take: a table that flashstep bench products measures and
// that is compiled in (tuned.inc), so that nothing is timed while a program runs, and bits repeat.
#pragma once

#include <compare>
#include <cstdint>
#include <span>

#include <c10/core/ScalarType.h>

namespace flashstep {

// Elements from row to row, where rows are as long as this (columns, for what lies by columns).
constexpr int64_t padded_width(int64_t width) { return (width + 7) / 8 * 8; }

// Of a product of 16-bit tensors that begin at multiples of 256 bytes and whose rows are
// padded_width() elements apart.
struct ProductShape {
  at::ScalarType type = at::kBFloat16, result = at::kBFloat16;  // of a and b; of d
  int64_t m = 0, n = 0, k = 0;
  bool a_by_columns = false, b_by_columns = false;  // as they lie in memory
  bool adds = false;                                // c
  auto operator<=>(const ProductShape&) const = default;
};

struct TunedProduct {
  const char* gpu;
  int64_t version;  // of cuBLASLt: another one numbers its algorithms anew
  ProductShape shape;
  int64_t algorithm;  // its number in the order of the heuristic, whose own first choice is 0
};

std::span<const TunedProduct> tuned_products();

// The table's algorithm; 0 for what it does not name.
int64_t tuned_algorithm(const char* gpu, int64_t version, const ProductShape& shape);

}  // namespace flashstep
