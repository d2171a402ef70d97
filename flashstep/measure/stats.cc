#include "flashstep/measure/stats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace flashstep::measure {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool any_nan(std::span<const double> values) {
  return std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
}

// `sorted` must be ascending, not empty and free of NaN.
double quantile_of_sorted(std::span<const double> sorted, double q) {
  const double position = std::clamp(q, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = position - static_cast<double>(below);
  // Without this test, equal infinities would give inf - inf.
  if (weight == 0 || sorted[below] == sorted[above]) return sorted[below];
  return sorted[below] + weight * (sorted[above] - sorted[below]);
}

std::vector<double> sorted_copy(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace

double mean(std::span<const double> values) {
  if (values.empty()) return kNaN;
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double sample_stddev(std::span<const double> values) {
  if (values.size() < 2) return kNaN;
  const double center = mean(values);  // two passes: no cancellation when the spread is small
  double squares = 0;
  for (const double value : values) squares += (value - center) * (value - center);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double quantile(std::span<const double> values, double q) {
  if (values.empty() || any_nan(values) || std::isnan(q)) return kNaN;
  return quantile_of_sorted(sorted_copy(values), q);
}

double median(std::span<const double> values) { return quantile(values, 0.5); }

double geometric_mean(std::span<const double> values) {
  if (values.empty()) return kNaN;
  double logs = 0;
  for (const double value : values) {
    if (!(value >= 0)) return kNaN;
    logs += std::log(value);  // -inf for 0, which exp() turns into 0
  }
  return std::exp(logs / static_cast<double>(values.size()));
}

}  // namespace flashstep::measure
