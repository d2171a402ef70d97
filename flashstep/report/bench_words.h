// Cells and words that the tables of benchmarks have in common.
#pragma once

#include <cmath>
#include <limits>

#include "flashstep/measure/table.h"

namespace flashstep::report {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();  // a value that is not there

// An empty cell for what is not there.
inline measure::Cell finite(double value) {
  return std::isfinite(value) ? measure::Cell(value) : measure::Cell();
}

inline const char* standing(bool kept) { return kept ? "kept" : "BROKEN"; }  // of a bar

}  // namespace flashstep::report
