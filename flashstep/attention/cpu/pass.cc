#include "flashstep/attention/cpu/pass.h"

#include <cfloat>
#include <cmath>
#include <new>
#include <unistd.h>

#include <hwy/targets.h>

#include "flashstep/attention/cpu/bf16_dot.h"

namespace flashstep::attention_cpu {

Scale split_scale(float scale) {
  // Below float32's smallest normal number no product with a score leaves a trace in the softmax.
  if (std::abs(scale) < FLT_MIN) return {0, 1};
  return {std::copysign(1.0f, scale),
          std::min(std::abs(scale), FLT_MAX / 2) * static_cast<float>(attention_kernel::kLog2E)};
}

Machine this_machine() {
  // Where the system does not say: what every x86 server core of the last ten years has at least.
  constexpr int64_t kLeastL2 = 256 << 10;
  const int64_t l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return {l2 > 0 ? l2 : kLeastL2, has_bf16_dot() && (hwy::SupportedTargets() & HWY_AVX3) != 0};
}

Memory allocate(int64_t words) {
  // Highway aborts on an empty array.
  auto memory = hwy::AllocateAligned<float>(static_cast<size_t>(std::max<int64_t>(words, 1)));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace flashstep::attention_cpu
