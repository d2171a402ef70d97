// Global norm of gradients and clipping to it, without the host waiting for the device.
#pragma once

#include <functional>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "flashstep/ops/grad_norm.h"

namespace flashstep {

// Clips the gradients that `optimizer` uses to the global L2 norm `max_norm`, by the factor
// min(1, max_norm / (norm + 1e-6)) of torch's clip_grad_norm_, and returns the norm before, ()
// float32. Right wherever they lie: of a ShardedOptimizer all ranks call it, and get the same bits.
// UserError unless max_norm is above 0.
torch::Tensor clip_grad_norm(torch::optim::Optimizer& optimizer, double max_norm);

// The L2 norm over all gradients as one () float32 tensor. A sharded recipe replaces it by a
// function that adds the squares of every rank's shards.
using NormFunction = std::function<torch::Tensor(const std::vector<torch::Tensor>& gradients)>;

using flashstep::clip_to_norm;
// sqrt(sum of squares over all tensors), () float32 on the device of the first; 0 for none. Tensors
// may differ in dtype and device (ops/grad_norm.h).
torch::Tensor global_norm(const std::vector<torch::Tensor>& gradients);

// The gradients of the parameters that have one, each once: a tied tensor may come twice.
std::vector<torch::Tensor> gradients_of(const std::vector<torch::Tensor>& parameters);
// Those that `optimizer` uses, of which a sharded optimizer may have this rank's pieces alone.
std::vector<torch::Tensor> gradients_of(torch::optim::Optimizer& optimizer);

}  // namespace flashstep
