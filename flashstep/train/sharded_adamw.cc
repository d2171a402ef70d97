#include "flashstep/train/sharded_adamw.h"

#include "flashstep/parallel/state_pieces.h"

namespace flashstep::train {

void ShardedAdamW::step_unless(const torch::Tensor& found_inf, const torch::Tensor& grad_scale) {
  update_with([&](torch::optim::Optimizer& inner) {
    static_cast<AdamW&>(inner).step_unless(found_inf, grad_scale);
  });
}

NamedTensors optimizer_state(const ShardedAdamW& optimizer, const NamedTensors& parameters) {
  return optimizer_state(optimizer.inner(), optimizer.named_own(parameters));
}

void load_optimizer_state(ShardedAdamW& optimizer, const NamedTensors& parameters,
                          const NamedTensors& state) {
  const NamedTensors whole = parallel::join_pieces(state, parameters);
  load_optimizer_state(optimizer.inner(), optimizer.named_own(parameters),
                       optimizer.own_share(whole, parameters));
}

}  // namespace flashstep::train
