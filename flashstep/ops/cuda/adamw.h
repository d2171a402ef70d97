// AdamW's update of a list of tensors in one pass over their memory.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "flashstep/ops/cuda/tensor_table.h"

namespace flashstep::multi_tensor {

// All pointers but `step` are to `numel` elements in the same order, aligned to their type.
struct AdamWPiece {
  void* parameter;  // of parameter_element
  const void* gradient;
  void* exp_avg;  // as exp_avg_sq: of moment_element
  void* exp_avg_sq;
  void* copy;   // written: the parameter rounded to copy_element; null: none
  float* step;  // updates made so far
  int64_t numel;
  int first_block;  // filled in by the launch
  Element gradient_element;
  Element copy_element;  // not kFloat32
};

inline constexpr int kMostAdamWPieces = 510;  // 64 bytes each

struct AdamWArguments {
  AdamWPiece pieces[kMostAdamWPieces];
  int count = 0;
  // Or kBFloat16, rounded stochastically; parameters only with such moments.
  Element parameter_element = Element::kFloat32, moment_element = Element::kFloat32;
  const float* learning_rate = nullptr;
  const float* skip = nullptr;  // 1: nothing is written; null: never
  const float* norm = nullptr;  // gradients times min(1, max_norm / (norm + 1e-6)); null: as is
  float max_norm = 0;
  float beta1 = 0, beta2 = 0, weight_decay = 0, eps = 0;
};
static_assert(sizeof(AdamWArguments) <= kMostArgumentBytes);

cudaError_t launch_adamw(AdamWArguments& arguments, cudaStream_t stream);

}  // namespace flashstep::multi_tensor
