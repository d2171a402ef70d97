// The state that a torch::optim::Optimizer of any type keeps of a parameter, as named tensors.
// Optimizers hide it in classes of their own, which can only write themselves into archives and
// read themselves from them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "flashstep/parallel/named_tensors.h"

namespace flashstep {

// "NAME/KIND" for every parameter that has state. Numbers are () tensors, "NAME/KIND:int" or
// "NAME/KIND:double". `parameters` are those that the optimizer updates, each once.
NamedTensors read_state(const torch::optim::Optimizer& optimizer, const NamedTensors& parameters);

// An optimizer of the type in question over other parameters.
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(
    const std::vector<torch::optim::OptimizerParamGroup>& groups)>;

// The opposite; what the optimizer had is forgotten. Tensors of the parameter's shape get the
// strides of its gradient. Each parameter's state is read by an optimizer of its own from `make`,
// which is expected to load what torch::optim::serialize writes.
void write_state(torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
                 const NamedTensors& state, const MakeOptimizer& make);

}  // namespace flashstep
