// What the tests of copies between GPUs have in common.
#pragma once

#include <ATen/ATen.h>

#include "flashstep/comm/peer_copies.h"

namespace flashstep {

inline void push_everywhere(PeerCopies& copies, size_t number, const at::Tensor& from,
                            int64_t begin) {
  copies.push_to_all([&](int to) { copies.push(to, number, from, begin); });
}

// Milliseconds of work on the current stream; returns 1.
inline at::Tensor late_one(at::Device device) {
  constexpr int64_t kSide = 4096;  // a power of two: every product is 1 exactly
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const at::Tensor factor = at::full({kSide, kSide}, 1.0 / kSide, options);
  at::Tensor one = at::ones({kSide, kSide}, options);
  for (int i = 0; i < 20; ++i) one = one.matmul(factor);
  return one[0][0];
}

}  // namespace flashstep
