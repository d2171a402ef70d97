// Where the axes of a plot have their ticks, and what these say.
#pragma once

#include <string>
#include <vector>

namespace flashstep::measure {

enum class Scale {
  kLinear,
  kLog,   // ticks at powers of ten (and 2 and 5 between them where they fit)
  kLog2,  // ticks at powers of two: sequence lengths, sizes
};

struct Tick {
  double value;
  std::string label;  // empty: a minor tick
};

// The finite interval [low, high], low < high, that an axis shows. Values beyond +-1e300 are as
// infinite as infinity; on logarithmic scales only positive values exist.
struct Interval {
  double low = 0, high = 1;
};

// True for values that can be drawn on this scale.
bool drawable(double value, Scale scale);

// The smallest interval around the drawable values, widened by `margin` (a share of its length on
// either side) and to a visible length where all of them are equal; [0, 1] or [1, 10] if there is
// none.
Interval interval_around(const std::vector<double>& values, Scale scale, double margin);

// Position in [0, 1] of a drawable value between the ends of the interval (outside them: beyond).
double position_on(const Interval& interval, Scale scale, double value);

// About `wanted` ticks (at least two labelled ones, wherever such exist) at round values within the
// interval, ascending. Labels are as short as they can be while telling neighbours apart: "0.25",
// "1,500", "20k", "2x10^-5" with real superscripts.
// `whole`: the values are whole numbers, so that ticks between these would say nothing.
std::vector<Tick> choose_ticks(const Interval& interval, Scale scale, int wanted,
                               bool whole = false);

}  // namespace flashstep::measure
