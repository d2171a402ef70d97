#include "flashstep/measure/ticks.h"

#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"

namespace flashstep::measure {
namespace {

constexpr double kLargest = 1e300, kSmallest = 1e-290;  // differences and ratios stay finite

// 10^exponent. std::pow is exact to the last bit only by luck, but the values are only drawn.
double power_of_ten(int exponent) { return std::pow(10.0, exponent); }

std::string superscript(int exponent) {
  static const char* kDigits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string out = exponent < 0 ? "⁻" : "";
  for (const char digit : std::to_string(std::abs(exponent))) out += kDigits[digit - '0'];
  return out;
}

std::string with_minus(std::string number) {  // a true minus sign is as wide as the digits
  if (!number.empty() && number[0] == '-') number.replace(0, 1, "−");
  return number;
}

// How many decimals tell multiples of `step` apart.
int decimals_of(double step) {
  for (int digits = 0; digits < 12; ++digits) {
    const double scaled = step * power_of_ten(digits);
    if (std::abs(scaled - std::round(scaled)) < 1e-6 * scaled) return digits;
  }
  return 12;
}

// `value` with `decimals` decimals and commas between thousands.
std::string plain(double value, int decimals) {
  const double rounded = std::round(std::abs(value) * power_of_ten(decimals));
  std::string text = fixed(std::abs(value), decimals);
  const size_t point = std::min(text.find('.'), text.size());
  for (size_t i = point; i > 3; i -= 3) text.insert(i - 3, 1, ',');
  return value < 0 && rounded > 0 ? str("−", text) : text;
}

struct Unit {
  double factor;
  const char* suffix;
};
// Up to 9,999 as it is; beyond that 10k, 2.5M.
Unit unit_of(double largest) {
  if (largest >= 1e15 || largest < 1e4) return {1, ""};
  if (largest >= 1e12) return {1e12, "T"};
  if (largest >= 1e9) return {1e9, "B"};
  if (largest >= 1e6) return {1e6, "M"};
  return {1e3, "k"};
}

// Ticks at multiples of `step` share one form, so that they can be compared at a glance.
std::string linear_label(double value, double step, double largest) {
  if (largest >= 1e15 || largest < 1e-3) {
    if (std::abs(value) < step / 2) return "0";
    const int exponent = static_cast<int>(std::floor(std::log10(largest) + 1e-9));
    const double mantissa = value / power_of_ten(exponent);
    const int decimals = decimals_of(step / power_of_ten(exponent));
    return with_minus(fixed(mantissa, decimals)) + "×10" + superscript(exponent);
  }
  Unit unit = unit_of(largest);
  if (decimals_of(step / unit.factor) > 2) unit = {1, ""};
  if (std::abs(value) < step / 2) return "0";
  return plain(value / unit.factor, decimals_of(step / unit.factor)) + unit.suffix;
}

// The round number (1, 2, 2.5 or 5 times a power of ten) that comes closest to `wanted` steps.
double round_step(double length, int wanted) {
  const double ideal = length / wanted;
  const int exponent = static_cast<int>(std::floor(std::log10(ideal)));
  double best = 0, best_distance = INFINITY;
  for (const double mantissa : {1.0, 2.0, 2.5, 5.0, 10.0}) {
    const double step = mantissa * power_of_ten(exponent);
    const double distance = std::abs(std::log(step / ideal)) + (mantissa == 2.5 ? 0.1 : 0);
    if (distance < best_distance) {
      best = step;
      best_distance = distance;
    }
  }
  return best;
}

std::vector<Tick> linear_ticks(const Interval& interval, int wanted, bool whole = false) {
  double step = round_step(interval.high - interval.low, wanted);
  if (whole) step = step == 2.5 ? 2 : std::max(step, 1.0);
  std::vector<Tick> ticks;
  for (int attempt = 0; attempt < 4 && ticks.size() < 2; ++attempt, step /= whole ? 1 : 2) {
    ticks.clear();
    const double slack = 1e-9 * step;
    const double largest = std::max(std::abs(interval.low), std::abs(interval.high));
    const double first = std::ceil((interval.low - slack) / step);
    for (double i = first; i * step <= interval.high + slack && ticks.size() < 100; ++i) {
      const double value = i * step;
      ticks.push_back({value, linear_label(value, step, largest)});
    }
  }
  return ticks;
}

// A label for one value of a logarithmic axis; each has the form that suits it.
std::string log_label(double value) {
  const int exponent = static_cast<int>(std::floor(std::log10(value) + 1e-9));
  if (exponent < -4 || exponent >= 15) {
    const double mantissa = std::round(value / power_of_ten(exponent));
    return (mantissa == 1 ? "" : fixed(mantissa, 0) + "×") + "10" + superscript(exponent);
  }
  const Unit unit = unit_of(value * (1 + 1e-9));
  return plain(value / unit.factor, decimals_of(value / unit.factor)) + unit.suffix;
}

std::vector<Tick> log_ticks(const Interval& interval, int wanted) {
  const double decades = std::log10(interval.high) - std::log10(interval.low);
  if (decades < 0.8) return linear_ticks(interval, wanted);
  // With few decades 2, 5 and then 3 get labels, with very many only each n-th power of ten.
  const bool label_2_and_5 = decades * 3 <= wanted * 1.3;
  const bool label_3 = decades * 4 <= wanted;
  const int every = std::max(1, static_cast<int>(std::ceil(decades / wanted)));
  std::vector<Tick> ticks;
  const int first = static_cast<int>(std::floor(std::log10(interval.low))) - 1;
  const int last = static_cast<int>(std::ceil(std::log10(interval.high)));
  for (int exponent = first; exponent <= last; ++exponent) {
    for (int digit = 1; digit <= 9; ++digit) {
      const double value = digit * power_of_ten(exponent);
      if (value < interval.low * (1 - 1e-9) || value > interval.high * (1 + 1e-9)) continue;
      const bool major = digit == 1 && exponent % every == 0;
      const bool labelled =
          major || (label_2_and_5 && (digit == 2 || digit == 5)) || (label_3 && digit == 3);
      if (!labelled && every > 1) continue;
      ticks.push_back({value, labelled ? log_label(value) : ""});
    }
  }
  return ticks;
}

std::vector<Tick> log2_ticks(const Interval& interval, int wanted) {
  const double doublings = std::log2(interval.high) - std::log2(interval.low);
  const int every = std::max(1, static_cast<int>(std::ceil(doublings / std::max(wanted, 10))));
  std::vector<Tick> ticks;
  const int first = static_cast<int>(std::ceil(std::log2(interval.low) - 1e-9));
  const int last = static_cast<int>(std::floor(std::log2(interval.high) + 1e-9));
  for (int exponent = first; exponent <= last; ++exponent) {
    if (exponent % every != 0) continue;
    const double value = std::exp2(exponent);
    const bool readable = exponent >= -4 && exponent <= 23;
    ticks.push_back(
        {value, readable ? plain(value, std::max(0, -exponent)) : str("2", superscript(exponent))});
  }
  return ticks.size() >= 2 ? ticks : linear_ticks(interval, wanted);
}

}  // namespace

bool drawable(double value, Scale scale) {
  if (!(std::abs(value) <= kLargest)) return false;
  return scale == Scale::kLinear || value >= kSmallest;
}

Interval interval_around(const std::vector<double>& values, Scale scale, double margin) {
  double low = INFINITY, high = -INFINITY;
  for (const double value : values) {
    if (!drawable(value, scale)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  if (scale != Scale::kLinear) {
    if (low > high) return {1, 10};
    const double length = std::log(high) - std::log(low);
    if (length < 0.001) return {low / 2, high * 2};
    const double ratio = std::exp(length * margin);
    return {std::max(low / ratio, kSmallest), std::min(high * ratio, kLargest)};
  }
  if (low > high) return {0, 1};
  const double magnitude = std::max(std::abs(low), std::abs(high));
  if (high - low <= 1e-9 * magnitude || high - low < kSmallest) {
    const double half = magnitude < kSmallest ? 1 : 0.1 * magnitude;
    return {low - half, high + half};
  }
  return {low - margin * (high - low), high + margin * (high - low)};
}

double position_on(const Interval& interval, Scale scale, double value) {
  if (scale == Scale::kLinear) return (value - interval.low) / (interval.high - interval.low);
  // Differences of logarithms, because the ratio of the ends may be more than a double holds.
  const double start = std::log(interval.low);
  return (std::log(value) - start) / (std::log(interval.high) - start);
}

std::vector<Tick> choose_ticks(const Interval& interval, Scale scale, int wanted, bool whole) {
  wanted = std::max(wanted, 2);
  switch (scale) {
    case Scale::kLinear:
      return linear_ticks(interval, wanted, whole);
    case Scale::kLog:
      return log_ticks(interval, wanted);
    case Scale::kLog2:
      return log2_ticks(interval, wanted);
  }
  return {};
}

}  // namespace flashstep::measure
