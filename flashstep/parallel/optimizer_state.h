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

// Calls `load`, optimizer.load(archive) or what stands in it, where parameters may stand in groups
// more than once, as tied tensors do in torch's Module::parameters(). torch::optim::serialize gives
// an archive's state to the last place of a parameter and has moved it away by then. So it sees a
// view in the place of every repetition. In a call of itself, as AdamW::load makes one, it only
// calls `load`; ShardedOptimizer's load does all by itself. UserError if the archive repeats other
// places, for then there is state that belongs nowhere.
void load_repeated(torch::optim::Optimizer& optimizer, const std::function<void()>& load);

// An optimizer of the type in question over other parameters.
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(
    const std::vector<torch::optim::OptimizerParamGroup>& groups)>;

// The opposite; what the optimizer had is forgotten. Tensors of the parameter's shape get the
// strides of its gradient. Each parameter's state is read by an optimizer of its own from `make`,
// which is expected to load what torch::optim::serialize writes.
void write_state(torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
                 const NamedTensors& state, const MakeOptimizer& make);

}  // namespace flashstep
