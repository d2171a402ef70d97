// One element of SwiGLU.
#pragma once

#include <type_traits>

namespace flashstep::ops_cuda {

// 1 / (1 + e^-x). The fast exponential errs by 2 + 1.2 |x| units of 2^-24, far below the rounding
// of a 16-bit dtype and above that of float32.
template <typename T>
__device__ inline float sigmoid(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return 1.0f / (1.0f + expf(-x));
  } else {
    return __fdividef(1.0f, 1.0f + __expf(-x));
  }
}

// a and b become their gradients, y the result once more. T: what they are rounded to.
template <typename T>
__device__ inline void swiglu_backward_element(float dy, float& a, float& b, float& y) {
  const float s = sigmoid<T>(a), silu = a * s;
  y = silu * b;
  a = dy * b * s * (1.0f + a * (1.0f - s));
  b = dy * silu;
}

}  // namespace flashstep::ops_cuda
