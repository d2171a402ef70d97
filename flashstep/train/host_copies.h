// Copies of tensors in the host's memory, made by as many threads as LibTorch has: one thread's
// first touch of new memory takes ten times as long as a GPU's copy into it.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace flashstep {

// Of `tensors` on any devices, with their sizes and dtypes, and with their strides where they are
// dense. What the devices have been given so far comes first; the host waits. c10::Error where
// memory is too small.
std::vector<at::Tensor> copies_on_host(const std::vector<at::Tensor>& tensors);

}  // namespace flashstep
