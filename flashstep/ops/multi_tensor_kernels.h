// The CUDA kernels over lists of tensors, behind tensors.
#pragma once

#include <vector>

#include <torch/types.h>

#include "flashstep/ops/adamw.h"
#include "flashstep/ops/muon.h"

namespace flashstep::internal {

struct MultiTensorKernels {
  // Whether elements of `dtype` on `device` are the kernels'.
  bool (*takes)(const at::Device& device, at::ScalarType dtype);
  // Strided tensors that they take, at least one, all on one device.
  at::Tensor (*grad_norm)(const std::vector<at::Tensor>& tensors);
  // Float32 parameters, moments of one of float32 and bfloat16, gradients that they take, without
  // amsgrad; all on one device and each in the layout of its parameter.
  void (*adamw)(const AdamWTensors& tensors, const AdamWSettings& settings);
  // Contiguous parameters of float32 or bfloat16, momenta of one of these, gradients that they
  // take; all of one shape. The steps count; the momenta are written, and what is to be
  // orthogonalized into `directions`, (B, M, N) bfloat16.
  void (*muon_directions)(const MuonTensors& tensors, const MuonSettings& settings,
                          const at::Tensor& directions);
  // Of contiguous matrices (B, N, N) in bfloat16 what is above the diagonal becomes what is below
  // it.
  void (*mirror)(const at::Tensor& matrices);
  // Parameters and copies, by `directions` now orthogonalized, times `size`.
  void (*muon_update)(const MuonTensors& tensors, const MuonSettings& settings,
                      const at::Tensor& directions, double size);
};

// Takes nothing in a build without CUDA.
extern const MultiTensorKernels kCudaMultiTensor;

}  // namespace flashstep::internal
