#include <algorithm>
#include <cmath>
#include <numbers>

#include "flashstep/error.h"
#include "flashstep/optim.h"

namespace flashstep {

double learning_rate_at(const Schedule& schedule, int64_t step) {
  require(step >= 0, "[schedule] expected a step of at least 0, got ", step);
  const int64_t warmup = schedule.warmup_steps, last = schedule.cosine_steps;
  const double high = schedule.learning_rate, low = schedule.min_learning_rate;
  if (step < warmup) return static_cast<double>(step) / static_cast<double>(warmup) * high;
  if (last == 0) return high;
  if (step > last) return low;
  if (last == warmup) return high;  // the cosine is one point long: its highest
  if (schedule.decay_steps > 0) {
    const int64_t decay = std::min(schedule.decay_steps, last - warmup);
    const double left = static_cast<double>(last - step) / static_cast<double>(decay);
    return left >= 1 ? high : low + left * (high - low);
  }
  const double progress = static_cast<double>(step - warmup) / static_cast<double>(last - warmup);
  return low + 0.5 * (1 + std::cos(std::numbers::pi * progress)) * (high - low);
}

}  // namespace flashstep
