// For tests of plans: GPUs that are not here, and problems.
#pragma once

#include <cstdint>
#include <vector>

#include "flashstep/attention/cuda/device.h"
#include "flashstep/attention/problem.h"

namespace flashstep::attention_cuda {

inline constexpr int kKiB = 1024;
inline constexpr Device kH200 = {132, 227 * kKiB, 228 * kKiB, true};

// Shared memory as sm_86/89, sm_80 and sm_90 have it (a block's, a multiprocessor's), by SM count.
inline const std::vector<Device> kDevices = {{28, 99 * kKiB, 100 * kKiB},
                                             {84, 99 * kKiB, 100 * kKiB},
                                             {128, 99 * kKiB, 100 * kKiB},
                                             {108, 163 * kKiB, 164 * kKiB},
                                             kH200,
                                             {132, 227 * kKiB, 228 * kKiB},
                                             {1, 227 * kKiB, 228 * kKiB}};

// Under a causal mask the first query sees the first key.
inline attention_kernel::Problem make_problem(attention_kernel::Element element, int64_t heads,
                                              int64_t n, int64_t m, int head_dim, bool causal) {
  attention_kernel::Problem problem{};
  problem.element = element;
  problem.batches = 1;
  problem.heads = problem.kv_heads = heads;
  problem.n = n;
  problem.m = m;
  problem.head_dim = head_dim;
  problem.scale = 1;
  problem.causal = causal;
  problem.window = attention_kernel::kNoWindow;
  return problem;
}

}  // namespace flashstep::attention_cuda
