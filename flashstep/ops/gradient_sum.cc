#include "flashstep/ops/gradient_sum.h"

#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/csrc/autograd/variable.h>

namespace flashstep::internal {

at::ScalarType gradient_dtype(const at::Tensor& weight) {
  const bool chooses = weight.is_leaf() && weight.requires_grad();
  const auto chosen = chooses ? weight.grad_dtype() : std::nullopt;
  return chosen.value_or(weight.scalar_type());
}

bool may_add_to_gradient(const at::Tensor& weight) {
  const auto* const chosen = torch::autograd::get_current_graph_task_exec_info();
  const bool is_whole = chosen == nullptr || chosen->empty();  // not of some inputs
  if (!is_whole || at::GradMode::is_enabled() || !weight.is_leaf() || !weight.requires_grad() ||
      gradient_dtype(weight) != at::kFloat || !torch::autograd::impl::hooks(weight).empty())
    return false;
  const auto node = torch::autograd::impl::try_get_grad_accumulator(weight);
  if (node) {
    if (!node->pre_hooks().empty() || !node->post_hooks().empty()) return false;
    const c10::impl::VirtualGuardImpl device(weight.device().type());
    if (weight.is_cuda() && node->stream() != device.getStream(weight.device())) return false;
  }
  const at::Tensor& sum = weight.grad();
  return !sum.defined() ||
         (sum.layout() == at::kStrided && sum.scalar_type() == at::kFloat && sum.is_contiguous() &&
          sum.sizes() == weight.sizes() && !sum.requires_grad() &&
          torch::autograd::impl::is_tensor_stealable(sum) &&
          torch::autograd::utils::obeys_layout_contract(sum, weight));
}

void keep_weight(torch::autograd::AutogradContext* context, const at::Tensor& weight) {
  if (weight.is_leaf()) context->saved_data["weight"] = weight;
}

at::Tensor weight_to_add_to(torch::autograd::AutogradContext* context) {
  const auto kept = context->saved_data.find("weight");
  if (kept == context->saved_data.end()) return {};
  const at::Tensor& weight = kept->second.toTensor();
  return weight.grad().defined() && may_add_to_gradient(weight) ? weight : at::Tensor();
}

at::Tensor take_gradient(const at::Tensor& weight) {
  return std::exchange(weight.mutable_grad(), at::Tensor());
}

}  // namespace flashstep::internal
