// Muon's update of many matrices (K. Jordan et al., "Muon: An optimizer for hidden layers in neural
// networks", 2024), with the size of an update and the weight decay of J. Liu et al., "Muon is
// scalable for LLM training", 2025: as large as AdamW's.
#pragma once

#include <vector>

#include <torch/types.h>

#include "flashstep/ops/cost.h"

namespace flashstep {

// Entry i of every list belongs to parameter i. All lie on one device; parameters are matrices of
// one floating dtype, dense in memory.
struct MuonTensors {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;  // a parameter's shape, any floating dtype; never written
  std::vector<at::Tensor> momenta;    // as AdamWTensors::exp_avgs
  std::vector<at::Tensor> steps;      // () float32 each: updates made so far
  std::vector<at::Tensor> copies;     // as AdamWTensors::copies
};

struct MuonSettings {
  at::Tensor learning_rate;  // () of rate_dtype(); this and the two below on the parameters' device
  double momentum = 0.95, weight_decay = 0.1;
  bool nesterov = true;
  int64_t iterations = kMuonIterations;  // of orthogonalized()
  at::Tensor skip;  // () float32; 1: nothing changes, decided on the device; undefined: never
  // Gradients are taken times clip_factor(norm, max_norm); norm () float32, undefined: as they are.
  at::Tensor norm = {};
  double max_norm = 0;
  bool rounds_by_chance = false;  // of bfloat16 parameters, as AdamWSettings has it
};

// matrices (B, M, N), float32, float64 or bfloat16, of any strides -> (B, M, N) of that dtype: of
// U S V^T about U V^T, singular values between 0.7 and 1.2. Newton-Schulz iterations
//   x = x / |x|;  s = x x^T;  x = a x + (b s + c s s) x
// with Jordan's coefficients a, b, c. Products of bfloat16 are summed in float32. The same bits in
// every run. UserError for other dimensions or dtypes.
at::Tensor orthogonalized(const at::Tensor& matrices, int64_t iterations = kMuonIterations);

//   g' = g * factor;  m = momentum * m + (1 - momentum) * g'
//   o = orthogonalized(nesterov ? momentum * m + (1 - momentum) * g' : m)
//   p = p - lr * weight_decay * p - lr * 0.2 sqrt(max(M, N)) * o
// Matrices of one shape are orthogonalized together: on a GPU, for float32 and bfloat16, in
// bfloat16, else in float32 or the parameters' dtype, whichever is wider. An empty matrix is not
// updated. Momenta in bfloat16 beside float32, and bfloat16 parameters if `rounds_by_chance`, are
// rounded stochastically, by a hash of the numbers and the step. UserError for lists that do not go
// together.
void muon(const MuonTensors& tensors, const MuonSettings& settings);

// The same by tensor operations, everywhere in float32 or wider but for rounding.
void muon_reference(const MuonTensors& tensors, const MuonSettings& settings);

}  // namespace flashstep
