// What a training run came to.
#pragma once

#include <cstdint>
#include <limits>

namespace flashstep {

struct LoopResult {
  int64_t steps = 0;    // updates done, over all processes of this run
  int64_t skipped = 0;  // of them, those that changed nothing
  double first_held_out_loss = std::numeric_limits<double>::quiet_NaN();
  double held_out_loss = std::numeric_limits<double>::quiet_NaN();
  double loss = std::numeric_limits<double>::quiet_NaN();  // of the last step
};

}  // namespace flashstep
