// The state that a torch::optim::Optimizer of any type keeps of a parameter, as named tensors.
// Optimizers hide it in classes of their own, which can only write themselves into archives.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <torch/torch.h>

#include "flashstep/parallel/named_tensors.h"

namespace flashstep::parallel {

// "NAME/KIND" for every parameter that has state; numbers as () tensors. `parameters` are those
// that the optimizer updates, each once.
NamedTensors read_state(const torch::optim::Optimizer& optimizer, const NamedTensors& parameters);

// The opposite; what the optimizer had is forgotten. `form` is the state of any parameter: of the
// class, and with the kinds, that shall be made.
void write_state(torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
                 const NamedTensors& state, const torch::optim::OptimizerParamState& form);

}  // namespace flashstep::parallel
