#include "flashstep/train/sharded_adamw.h"

#include <unordered_map>

#include "flashstep/train/shared_checkpoint.h"

namespace flashstep::train {

void ShardedAdamW::step_unless(const torch::Tensor& found_inf, const torch::Tensor& grad_scale) {
  update_with([&](torch::optim::Optimizer& inner) {
    static_cast<AdamW&>(inner).step_unless(found_inf, grad_scale);
  });
}

NamedTensors gather_optimizer_state(const ShardedAdamW& optimizer, const NamedTensors& parameters,
                                    const comm::Group& group) {
  const NamedTensors gathered =
      gather_tensors(optimizer_state(optimizer.inner(), parameters), group);
  // In the order in which the whole optimizer's state stands.
  const std::unordered_map<std::string, torch::Tensor> by_name(gathered.begin(), gathered.end());
  NamedTensors result;
  for (const auto& [name, parameter] : parameters) {
    for (const char* kind : {"/exp_avg", "/exp_avg_sq", "/max_exp_avg_sq", "/step"}) {
      const auto found = by_name.find(name + kind);
      if (found != by_name.end()) result.emplace_back(found->first, found->second);
    }
  }
  return result;
}

void load_optimizer_state(ShardedAdamW& optimizer, const NamedTensors& parameters,
                          const NamedTensors& state) {
  AdamW& inner = optimizer.inner();
  load_optimizer_state(inner, parameters, state);
  for (const auto& [name, parameter] : parameters) {
    const bool is_own = optimizer.owner(parameter) == optimizer.rank();
    if (!is_own) inner.state().erase(parameter.unsafeGetTensorImpl());
  }
}

}  // namespace flashstep::train
