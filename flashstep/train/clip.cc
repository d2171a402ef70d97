#include <ATen/ATen.h>

#include "flashstep/error.h"
#include "flashstep/optim.h"
#include "flashstep/parallel/divided_tensors.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/train/optimizer_parameters.h"

namespace flashstep {

torch::Tensor clip_grad_norm(torch::optim::Optimizer& optimizer, double max_norm) {
  if (auto* sharded = dynamic_cast<ShardedOptimizerBase*>(&optimizer))
    return sharded->clip_grad_norm(max_norm);
  const auto gradients = gradients_of(optimizer);
  const torch::Tensor norm = global_norm(optimizer, gradients);
  clip_to_norm(gradients, norm, max_norm);
  return norm;
}

using torch::Tensor;

Tensor global_norm(torch::optim::Optimizer& optimizer, const std::vector<Tensor>& gradients) {
  if (auto* sharded = dynamic_cast<ShardedOptimizerBase*>(&optimizer))
    return sharded->global_norm(gradients);
  const std::vector<Tensor> parameters = parameters_of(optimizer);
  return divided_tensors(parameters).empty() ? grad_norm(gradients) : norm_of_gradients(parameters);
}

std::vector<Tensor> gradients_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : each_once(parameters)) {
    const Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    require(gradient.layout() == at::kStrided,
            "[train] expected dense gradients, got one of shape ", gradient.sizes(), " of layout ",
            gradient.layout(), ": an Embedding's without sparse is dense");
    gradients.push_back(gradient);
  }
  return gradients;
}

std::vector<Tensor> gradients_of(torch::optim::Optimizer& optimizer) {
  auto* const sharded = dynamic_cast<ShardedOptimizerBase*>(&optimizer);
  if (sharded != nullptr && sharded->gradients_are_divided()) return sharded->gradients();
  return gradients_of(parameters_of(optimizer));
}

}  // namespace flashstep
