// Learning rate by step: linear warm-up, then half a cosine (Loshchilov and Hutter, "SGDR", 2017,
// as the course defines it), then the lowest rate.
#pragma once

#include <cstdint>

namespace flashstep {

struct Schedule {
  double learning_rate = 1e-3;      // the highest, reached after the warm-up
  double min_learning_rate = 1e-4;  // from `cosine_steps` on
  int64_t warmup_steps = 0;         // Tw: rate = step / Tw * learning_rate before it
  int64_t cosine_steps =
      0;  // Tc: the cosine runs from Tw to Tc; 0: no cosine, constant after warm-up
};

// The rate of update number `step`, counted from 0 (the course's t; with a warm-up, step 0 has rate
// 0):
//   t < Tw:        t / Tw * max
//   Tw <= t <= Tc: min + (1 + cos(pi * (t - Tw) / (Tc - Tw))) / 2 * (max - min)
//   t > Tc:        min
double learning_rate_at(const Schedule& schedule, int64_t step);

}  // namespace flashstep
