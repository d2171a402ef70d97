// Turns that take a millisecond.
#pragma once

#include "flashstep/bench/turns.h"

namespace flashstep::tools {

inline TurnOptions short_turns() {
  TurnOptions options;
  options.cell_seconds = options.warmup_seconds = 1e-4;
  options.turns = 2;
  options.least_samples = options.most_samples = 4;
  return options;
}

}  // namespace flashstep::tools
