#include <ATen/autocast_mode.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/passes.h"

namespace flashstep {

AutocastGuard::AutocastGuard(at::DeviceType device, at::ScalarType dtype, Cache cache, bool enabled)
    : device_(device),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      was_cached_(at::autocast::is_autocast_cache_enabled()),
      was_dtype_(at::autocast::get_autocast_dtype(device)) {
  require(dtype == at::kBFloat16 || dtype == at::kHalf,
          "[AutocastGuard] expected bfloat16 or float16, got ", c10::toString(dtype));
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::set_autocast_cache_enabled(cache == Cache::kOn);
  at::autocast::increment_nesting();
}

AutocastGuard::~AutocastGuard() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_cache_enabled(was_cached_);
  at::autocast::set_autocast_dtype(device_, was_dtype_);
  at::autocast::set_autocast_enabled(device_, was_enabled_);
}

at::ScalarType internal::dtype_under_autocast(const at::Tensor& x) {
  const at::DeviceType device = x.device().type();
  const bool lowered = x.scalar_type() != at::kDouble &&
                       at::autocast::is_autocast_available(device) &&
                       at::autocast::is_autocast_enabled(device);
  return lowered ? at::autocast::get_autocast_dtype(device) : x.scalar_type();
}

}  // namespace flashstep
