// The parameters that an optimizer trains.
#pragma once

#include <vector>

#include <torch/optim/optimizer.h>

namespace flashstep {

// Of all groups, in their order.
inline std::vector<torch::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

}  // namespace flashstep
