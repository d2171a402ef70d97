// Statistics of a handful of measurements. What is undefined is NaN, and a NaN among the values
// makes every result NaN, so that a failed measurement cannot hide in a median.
#pragma once

#include <span>

namespace flashstep::measure {

double mean(std::span<const double> values);  // NaN for none

// Square root of the sum of squared deviations over n - 1; NaN for fewer than two values.
double sample_stddev(std::span<const double> values);

// The value below which a share `q` in [0, 1] of the values lies, linear between neighbours (type 7
// of Hyndman and Fan 1996, numpy's default); NaN for none.
double quantile(std::span<const double> values, double q);

double median(std::span<const double> values);

// exp(mean(log(value))); 0 when one is 0, NaN for none or when one is negative.
double geometric_mean(std::span<const double> values);

}  // namespace flashstep::measure
