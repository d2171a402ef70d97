// What kernels over lists of tensors have in common. A list travels in a launch's arguments: a
// captured graph keeps them by value, and nothing is uploaded.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashstep::multi_tensor {

enum class Element : uint8_t { kFloat32, kBFloat16, kFloat16 };

// CUDA 12.1's limit of a launch's arguments, for compute capability 7.0 and later.
inline constexpr size_t kMostArgumentBytes = 32'764;

inline constexpr int64_t count_chunks(int64_t numel, int64_t chunk) {
  return (numel + chunk - 1) / chunk;
}

}  // namespace flashstep::multi_tensor
