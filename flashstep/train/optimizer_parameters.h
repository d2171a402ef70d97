// The parameters that an optimizer trains.
#pragma once

#include <unordered_set>
#include <vector>

#include <torch/optim/optimizer.h>

namespace flashstep {

// Without those that came before: a module has a tied weight under each of its names.
inline std::vector<torch::Tensor> each_once(std::vector<torch::Tensor> parameters) {
  std::unordered_set<void*> seen;
  std::erase_if(parameters, [&](const torch::Tensor& parameter) {
    return !seen.insert(parameter.unsafeGetTensorImpl()).second;
  });
  return parameters;
}

// Of all groups, in their order.
inline std::vector<torch::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return each_once(std::move(parameters));
}

}  // namespace flashstep
