#include "flashstep/optim.h"

namespace flashstep {

void ShardedAdamW::step_unless(const torch::Tensor& found_inf) {
  update_with(
      [&](torch::optim::Optimizer& inner) { static_cast<AdamW&>(inner).step_unless(found_inf); });
}

void ShardedAdamW::step_clipped_unless(const torch::Tensor& found_inf, const Clipping& clipping,
                                       const std::vector<torch::Tensor>& gradients) {
  if (!static_cast<AdamW&>(inner()).clips_in_passing()) {
    SkippableOptimizer::step_clipped_unless(found_inf, clipping, gradients);
    return;
  }
  update_with([&](torch::optim::Optimizer& inner) {
    static_cast<AdamW&>(inner).step_clipped_unless(found_inf, clipping, {});
  });
}

void ShardedAdamW::refresh_learning_rates() {
  reconcile();
  carry_options();
  inner().refresh_learning_rates();
}

void ShardedAdamW::keep_moments_in(at::ScalarType dtype) {
  inner().keep_moments_in(dtype);
  moments_ = dtype;
}

// What comes from an archive went through an optimizer that keeps the parameters' dtype.
void ShardedAdamW::load(torch::serialize::InputArchive& archive) {
  ShardedOptimizer<AdamW>::load(archive);
  inner().keep_moments_in(moments_);
}

NamedTensors optimizer_state(const ShardedAdamW& optimizer, const NamedTensors& parameters) {
  return optimizer_state(optimizer.inner(), optimizer.named_own(parameters));
}

void load_optimizer_state(ShardedAdamW& optimizer, const NamedTensors& parameters,
                          const NamedTensors& own_state) {
  load_optimizer_state(optimizer.inner(), optimizer.named_own(parameters), own_state);
}

}  // namespace flashstep
