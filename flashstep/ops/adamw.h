// AdamW's update of many tensors (Loshchilov and Hutter, "Decoupled Weight Decay Regularization",
// 2019, algorithm 2), with clipping, skipping and 16-bit copies of the parameters in the same pass.
#pragma once

#include <vector>

#include <torch/types.h>

namespace flashstep {

// Entry i of every list belongs to parameter i. All lie on one device; parameters have one floating
// dtype and are dense in memory.
struct AdamWTensors {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;  // a parameter's shape, any floating dtype; never written
  // m, v: a parameter's shape and strides; all of the parameters' dtype, or, beside float32, all
  // bfloat16.
  std::vector<at::Tensor> exp_avgs, exp_avg_sqs;
  std::vector<at::Tensor> max_exp_avg_sqs;  // the same, with amsgrad; else empty
  std::vector<at::Tensor> steps;            // () float32 each: updates made so far
  // A parameter's shape in bfloat16 or float16, which hold the rounded parameters and go on doing
  // so; one of other strides takes a launch. Undefined for a parameter without; empty: all are.
  std::vector<at::Tensor> copies;
};

struct AdamWSettings {
  at::Tensor learning_rate;  // () of rate_dtype(); this and the two below on the parameters' device
  double beta1 = 0.9, beta2 = 0.999, weight_decay = 0.01, eps = 1e-8;
  bool amsgrad = false;
  at::Tensor skip;  // () float32; 1: nothing changes, decided on the device; undefined: never
  // Of bfloat16 parameters: they and their moments are rounded stochastically.
  bool rounds_by_chance = false;
  // Gradients are taken times clip_factor(norm, max_norm); norm () float32, undefined: as they are.
  at::Tensor norm = {};
  double max_norm = 0;
};

//   t = step + 1;  g' = g * factor;  p = p - lr * weight_decay * p
//   m = beta1 * m + (1 - beta1) * g';  v = beta2 * v + (1 - beta2) * g'^2
//   p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// Beside float32, m and v in bfloat16 are rounded stochastically, so that what is too small
// for their 8 bits counts on average: a v that is rounded to the nearest stands still where
// 1 - beta2 is below 2^-9. So are bfloat16 parameters and their moments, if `rounds_by_chance`;
// else to the nearest, as PyTorch does it.
// The random bits are a hash of the step and of p, m and v, so that runs repeat, however they are
// sharded, resumed or replayed. p is updated by the m and v of before the rounding.
// On a GPU, parameters without amsgrad, of float32 or rounded stochastically, take one pass over
// their memory for 510 of them: 28 bytes a float32 parameter with bfloat16 gradients and copies, 20
// with bfloat16 moments; 14 a bfloat16 parameter. Without clipping, float32 gradients give the bits
// of the reference. UserError for lists that do not go together.
void adamw(const AdamWTensors& tensors, const AdamWSettings& settings);

// The same by PyTorch's fused kernel: clipped gradients, and those of another dtype or other
// strides than the parameter's, are copies.
void adamw_reference(const AdamWTensors& tensors, const AdamWSettings& settings);

// Of the learning rate beside such a parameter: float64 beside float64 on the CPU, else float32,
// which is what PyTorch's CUDA kernel reads.
at::ScalarType rate_dtype(const at::Tensor& parameter);

// Whether adamw() clips such a parameter's gradient in the same pass.
bool adamw_clips_in_passing(const at::Tensor& parameter, bool amsgrad,
                            bool rounds_by_chance = false);

}  // namespace flashstep
