// Global norm of gradients and clipping to it, without the host waiting for the device.
#pragma once

#include <functional>
#include <vector>

#include <torch/types.h>

namespace flashstep::train {

// The L2 norm over all gradients as one () float32 tensor. A sharded recipe replaces it by a
// function that adds the squares of every rank's shards.
using NormFunction = std::function<torch::Tensor(const std::vector<torch::Tensor>& gradients)>;

// sqrt(sum of squares over all tensors), () float32 on the device of the first; 0 for none. Tensors
// may differ in dtype and device (ops/grad_norm.h).
torch::Tensor global_norm(const std::vector<torch::Tensor>& gradients);

// Multiplies every gradient by min(1, max_norm / (norm + 1e-6)), the rule of torch's
// clip_grad_norm_ and of the course. Nothing is read back.
void clip_to_norm(const std::vector<torch::Tensor>& gradients, const torch::Tensor& norm,
                  double max_norm);

// The gradients of the parameters that have one, each once: a tied tensor may come twice.
std::vector<torch::Tensor> gradients_of(const std::vector<torch::Tensor>& parameters);

}  // namespace flashstep::train
