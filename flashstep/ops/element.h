// The bridge from tensors to the vector kernels.
#pragma once

#include <torch/types.h>

#include "flashstep/ops/kernels_cpu.h"

namespace flashstep::internal {

// Whether the CPU's vector kernels take this tensor.
inline bool has_cpu_kernel(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

inline kernels::Element element_of(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ? kernels::Element::kFloat32 : kernels::Element::kBfloat16;
}

// Rows for one thread: below some 16 Ki elements starting a thread costs more than it saves.
inline int64_t grain_rows(int64_t width) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
}

}  // namespace flashstep::internal
