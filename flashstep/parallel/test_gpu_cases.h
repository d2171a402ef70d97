// What the tests of data parallelism on two GPUs have in common.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include <ATen/Context.h>

#include "flashstep/parallel/test_cases.h"
#include "flashstep/testing/gpu_ranks.h"

namespace flashstep {

// Runs `body` on two ranks, each with its GPU, over NCCL or Gloo.
inline void on_two_gpus(const std::function<void(const Group&, at::Device)>& body,
                        bool nccl = true) {
  testing::run_on_gpus(
      2,
      [&](const Group& group, at::Device device) {
        at::globalContext().setAllowTF32CuBLAS(false);
        body(group, device);
      },
      nccl);
}

// Of parameter i, a power of two: its products with whole numbers of up to 8 bits, their sums and
// means over two or four ranks are exact in every dtype, in whatever order they are added.
inline double factor_of(int i) { return std::ldexp(1.0, i - 6); }

inline std::vector<Case> gpu_cases() {
  std::vector<Case> cases = common_cases();
  for (Case& c : cases) c.options.peer_copies = false;
  for (const double megabytes : {0.0, 0.0001, 0.0016}) {
    for (const bool views : {false, true}) {
      cases.push_back(
          {str("by copies, buckets of ", megabytes, " MB", views ? ", means that stay" : ""),
           {.bucket_megabytes = megabytes, .gradient_as_bucket_view = views}});
    }
  }
  // Each again with gradients that have fewer bits than their parameters.
  std::vector<Case> narrow = without_torch(cases);
  for (Case& c : narrow) {
    c.name += ", bf16 gradients";
    c.gradients = at::kBFloat16;
  }
  cases.insert(cases.end(), narrow.begin(), narrow.end());
  return cases;
}

}  // namespace flashstep
