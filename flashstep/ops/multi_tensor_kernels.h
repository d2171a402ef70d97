// The CUDA kernels over lists of tensors, behind tensors.
#pragma once

#include <vector>

#include <torch/types.h>

#include "flashstep/ops/adamw.h"

namespace flashstep::internal {

struct MultiTensorKernels {
  // Whether elements of `dtype` on `device` are the kernels'.
  bool (*takes)(const at::Device& device, at::ScalarType dtype);
  // Strided tensors that they take, at least one, all on one device.
  at::Tensor (*grad_norm)(const std::vector<at::Tensor>& tensors);
  // Float32 parameters, moments of one of float32 and bfloat16, gradients that they take, without
  // amsgrad; all on one device and each in the layout of its parameter.
  void (*adamw)(const AdamWTensors& tensors, const AdamWSettings& settings);
};

// Takes nothing in a build without CUDA.
extern const MultiTensorKernels kCudaMultiTensor;

}  // namespace flashstep::internal
