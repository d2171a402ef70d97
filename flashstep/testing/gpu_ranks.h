// Tests with several ranks, each with a GPU of its own.
#pragma once

#include <functional>

#include "flashstep/group.h"
#include "flashstep/testing/gpus.h"
#include "flashstep/testing/ranks.h"

namespace flashstep::testing {

inline GroupOptions over_nccl() {
  GroupOptions options;
  options.nccl = true;
  return options;
}

// Runs `body` on so many ranks, over NCCL or Gloo. The test asks for the GPUs
// (FLASHSTEP_NEED_GPUS).
inline void run_on_gpus(int ranks, const std::function<void(const Group&, at::Device)>& body,
                        bool nccl = true) {
  run_ranks(ranks, [&](const Environment& environment) {
    const at::Device device = take_gpu(environment);
    const Group group(environment, nccl ? over_nccl() : GroupOptions());
    body(group, device);
  });
}

// Where there are not so many GPUs, several ranks have the same one: `body` may send between GPUs
// by copies alone, not by NCCL.
inline GroupOptions over_copies(int ranks) {
  GroupOptions options = over_nccl();
  options.shared_gpus = gpu_count() < ranks;
  return options;
}
inline void run_by_copies(int ranks, const std::function<void(const Group&, at::Device)>& body) {
  run_ranks(ranks, [&](const Environment& environment) {
    const at::Device device = take_gpu(environment);
    const Group group(environment, over_copies(ranks));
    body(group, device);
  });
}

}  // namespace flashstep::testing
