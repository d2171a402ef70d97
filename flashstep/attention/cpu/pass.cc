#include "flashstep/attention/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "flashstep/attention/cpu/pass.cc"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per instruction set
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace flashstep::attention_cpu {
namespace HWY_NAMESPACE {

// Of Highway's instruction sets on x86, each better one has a smaller number.
bool is_avx512() { return HWY_TARGET <= HWY_AVX3; }

}  // namespace HWY_NAMESPACE
}  // namespace flashstep::attention_cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <cfloat>
#include <cmath>
#include <new>
#include <unistd.h>

#include "flashstep/attention/cpu/bf16_dot.h"
#include "flashstep/attention/cpu/pass.h"

namespace flashstep::attention_cpu {

Scale split_scale(float scale) {
  // Below float32's smallest normal number no product with a score leaves a trace in the softmax.
  if (std::abs(scale) < FLT_MIN) return {0, 1, 1};
  const float natural = std::min(std::abs(scale), FLT_MAX / 2);
  return {std::copysign(1.0f, scale), natural,
          natural * static_cast<float>(attention_kernel::kLog2E)};
}

HWY_EXPORT(is_avx512);

Machine this_machine() {
  // Where the system does not say: what every x86 server core of the last ten years has at least.
  constexpr int64_t kLeastL2 = 256 << 10;
  // The system is asked once: under a hypervisor an answer may take 10 us.
  static const int64_t l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
  static const bool bf16_dot = has_bf16_dot();
  return {l2 > 0 ? l2 : kLeastL2, bf16_dot && HWY_DYNAMIC_DISPATCH(is_avx512)()};
}

Memory allocate(int64_t words) {
  // Highway aborts on an empty array.
  auto memory = hwy::AllocateAligned<float>(static_cast<size_t>(std::max<int64_t>(words, 1)));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace flashstep::attention_cpu
#endif
