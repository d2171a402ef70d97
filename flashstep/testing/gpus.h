// How many GPUs a test has.
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "flashstep/comm/gpus.h"

// Skips the running test, with the reason, where there are fewer than `count`.
#define FLASHSTEP_NEED_GPUS(count)                 \
  if (::flashstep::testing::gpu_count() < (count)) \
  GTEST_SKIP() << "needs " << (count) << " GPUs, here are " << ::flashstep::testing::gpu_count()

namespace flashstep::testing {

inline const at::Device kGpu(c10::DeviceType::CUDA, 0);

inline int gpu_count() { return visible_gpus(); }

// Makes the rank's GPU the current one.
inline at::Device take_gpu(const Environment& environment) {
  const at::Device device(c10::DeviceType::CUDA,
                          static_cast<c10::DeviceIndex>(gpu_of_rank(gpu_count(), environment)));
  c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).setDevice(device);
  return device;
}

}  // namespace flashstep::testing
