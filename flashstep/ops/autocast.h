// Autocast as a guard: LibTorch has the switches for it but no object.
#pragma once

#include <torch/types.h>

namespace flashstep {

// While alive, operators on `device` choose their dtype by torch's autocast rules on this thread,
// with `dtype` (bfloat16 or float16) as the low one. Guards nest; each restores what it found, also
// when an exception passes.
class AutocastGuard {
 public:
  enum class Cache {
    kOn,   // a weight is cast once per outermost guard
    kOff,  // for graph capture: cached casts of a graph's private pool must not outlive it
  };
  AutocastGuard(at::DeviceType device, at::ScalarType dtype, Cache cache = Cache::kOn,
                bool enabled = true);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  at::DeviceType device_;
  bool was_enabled_, was_cached_;
  at::ScalarType was_dtype_;
};

}  // namespace flashstep
