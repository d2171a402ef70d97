// Values of a normal distribution by the inverse of its distribution function, in vectors. The
// same bits with every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashstep {

// The x with P(X <= x) = probability for a standard normal X, to about 16 digits; probability and
// 1 - probability at least e^-25 (|x| up to 6.6).
// Source: Wichura, "Algorithm AS 241" (1988), PPND16.
double normal_quantile(double probability);

struct NormalDraws {
  double standard_deviation = 1;
  double lowest = 0;  // P(X <= -bound), and P(X >= bound)
  uint64_t seed = 0, stream = 0;
};
// out (count): one for each draw of Rng(seed, stream) from number `first` on.
void normal_values(const NormalDraws& draws, uint64_t first, size_t count, float* out);

}  // namespace flashstep
