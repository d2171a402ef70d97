// An operation that writes its weight's gradient into the reducer's bucket.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include "flashstep/data_parallel.h"

namespace flashstep {

// The sum of the weight: its gradient is written where the reducer wants it.
struct WriteInPlace : torch::autograd::Function<WriteInPlace> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& weight, GradientReducer* reducer) {
    context->saved_data["reducer"] = reinterpret_cast<int64_t>(reducer);
    context->save_for_backward({weight});
    return weight.sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* reducer = reinterpret_cast<GradientReducer*>(context->saved_data["reducer"].toInt());
    const torch::Tensor weight = context->get_saved_variables()[0];
    torch::Tensor gradient = reducer->gradient_slot(weight);
    if (!gradient.defined()) gradient = torch::empty_like(weight);
    gradient.copy_(gradients[0].expand_as(gradient));
    return {gradient, torch::Tensor()};
  }
};

}  // namespace flashstep
