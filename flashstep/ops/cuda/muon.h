// What Muon's update of a list of matrices does beside its products.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "flashstep/ops/cuda/tensor_table.h"

namespace flashstep::multi_tensor {

struct MuonPiece {
  void* parameter;       // of parameter_element
  const void* gradient;  // of gradient_element
  void* momentum;        // of momentum_element
  void* copy;            // written: the parameter rounded to copy_element; null: none
  float* step;           // updates made so far
  Element gradient_element;
  Element copy_element;  // not kFloat32
};

inline constexpr int kMostMuonPieces = 512;  // 48 bytes each

// All have `numel` elements, row by row, those of `directions` one piece behind the other.
struct MuonArguments {
  MuonPiece pieces[kMostMuonPieces];
  int count = 0;
  int64_t numel = 0;
  void* directions = nullptr;  // bfloat16
  Element parameter_element = Element::kFloat32, momentum_element = Element::kFloat32;
  const float* learning_rate = nullptr;
  const float* skip = nullptr;  // 1: nothing is written; null: never
  const float* norm = nullptr;  // gradients times min(1, max_norm / (norm + 1e-6)); null: as is
  float max_norm = 0;
  float momentum = 0, weight_decay = 0, size = 0;
  bool nesterov = true;
  bool parameter_by_chance = false, momentum_by_chance = false;  // rounded so to bfloat16
};
static_assert(sizeof(MuonArguments) <= kMostArgumentBytes);

// Of `count` matrices (n, n) of bfloat16, one behind the other, what is above the diagonal becomes
// what is below it.
cudaError_t launch_mirror(void* matrices, int64_t count, int64_t n, cudaStream_t stream);

cudaError_t launch_muon_directions(const MuonArguments& arguments, cudaStream_t stream);
cudaError_t launch_muon_update(const MuonArguments& arguments, cudaStream_t stream);

}  // namespace flashstep::multi_tensor
