// Which of cuBLASLt's algorithms products take: a table that flashstep bench products measures and
// that is compiled in (tuned.inc), so that nothing is timed while a program runs, and bits repeat.
#pragma once

#include <compare>
#include <cstdint>
#include <span>

#include <c10/core/ScalarType.h>

namespace flashstep {

// Of a product of tensors that are dense in memory and begin at multiples of 256 bytes.
struct ProductShape {
  at::ScalarType type = at::kFloat, result = at::kFloat;  // of a and b; of d
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
