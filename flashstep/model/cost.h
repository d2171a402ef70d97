// Parameters and floating-point operations of the model: the only home of these formulas.
// Torch-free.
//
// A multiplication and an addition count as two operations. Only matrix products are counted:
// norms, rotations, gates and the softmax are below one percent at these sizes.
#pragma once

#include <cstdint>

#include "flashstep/model/config.h"

namespace flashstep {

// For one sequence through the forward pass.
struct ForwardFlops {
  double linear = 0;     // projections of all blocks: 2 * tokens * their parameters
  double attention = 0;  // q k^T and weights * v: 4 * H * D for each pair of query and visible key
  double head = 0;       // 2 * tokens * C * V
  double total() const { return linear + attention + head; }
};

int64_t parameter_count(const ModelConfig& config);

// `causal` counts only the seq_len * (seq_len + 1) / 2 pairs that the mask leaves; without it all
// seq_len^2, as a kernel that masks afterwards computes them.
ForwardFlops forward_flops(const ModelConfig& config, int64_t seq_len, bool causal = true);

// Forward and backward of one training step: the backward pass does two products for each one of
// the forward pass. Recomputation inside a kernel is not counted (these are the model's FLOPs).
double step_flops(const ModelConfig& config, int64_t batch_size, int64_t seq_len,
                  bool causal = true);

}  // namespace flashstep
