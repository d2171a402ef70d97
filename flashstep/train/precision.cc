#include <map>

#include <ATen/ATen.h>

#include "flashstep/amp.h"
#include "flashstep/error.h"
#include "flashstep/optim.h"
#include "flashstep/parallel/divided_tensors.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/train/checkpoint_state.h"
#include "flashstep/train/optimizer_parameters.h"

namespace flashstep {

using torch::Tensor;

void keep_gradients_in(torch::ScalarType dtype, const std::vector<Tensor>& parameters) {
  for (const Tensor& parameter : parameters) {
    if (parameter.requires_grad() && parameter.dim() >= 2) parameter.set_grad_dtype(dtype);
  }
}

void keep_weights_in(torch::ScalarType dtype, const std::vector<Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  for (const Tensor& parameter : parameters) {
    const Tensor values = parameter.detach().to(parameter.dim() >= 2 ? dtype : at::kFloat);
    const bool is_trained = parameter.requires_grad();
    parameter.set_data(values);
    parameter.set_requires_grad(is_trained);
  }
}

GradientScaler::GradientScaler(torch::Device device) : GradientScaler(device, Options()) {}

GradientScaler::GradientScaler(torch::Device device, Options options)
    : options_(options),
      scale_(at::full({}, options.initial_scale, at::TensorOptions(device).dtype(at::kFloat))),
      growth_tracker_(at::zeros({}, at::TensorOptions(device).dtype(at::kInt))) {
  require(options.initial_scale > 0 && options.growth > 1 && options.backoff > 0 &&
              options.backoff < 1 && options.growth_interval > 0,
          "[GradientScaler] expected a scale above 0, growth above 1, backoff in (0, 1) and an "
          "interval above "
          "0, got ",
          options.initial_scale, ", ", options.growth, ", ", options.backoff, ", ",
          options.growth_interval);
}

Tensor GradientScaler::unscale(const std::vector<Tensor>& gradients) const {
  torch::NoGradGuard no_grad;
  Tensor found_inf = at::zeros({}, scale_.options());
  // In float64 the reciprocal of a float32 power of two is exact, as it is in float32 down to
  // 2^-126.
  const Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  std::map<std::string, std::vector<Tensor>> kinds;
  for (const Tensor& gradient : gradients) {
    kinds[flashstep::str(gradient.device(), ' ', c10::toString(gradient.scalar_type()))].push_back(
        gradient);
  }
  for (auto& [kind, tensors] : kinds) {
    const torch::Device device = tensors.front().device();
    Tensor found_here = at::zeros({}, found_inf.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(tensors, found_here, inverse.to(device));
    found_inf = at::maximum(found_inf, found_here.to(found_inf.device()));
  }
  return found_inf;
}

Tensor GradientScaler::unscale(torch::optim::Optimizer& optimizer) const {
  const Tensor found_inf = unscale(gradients_of(optimizer));
  const auto* sharded = dynamic_cast<ShardedOptimizerBase*>(&optimizer);
  if (sharded != nullptr && sharded->gradients_are_divided())
    return norm_over_ranks(found_inf, sharded->group()).gt(0).to(at::kFloat);
  return on_any_rank(found_inf, parameters_of(optimizer));
}

void GradientScaler::step(torch::optim::Optimizer& optimizer, const Tensor& found_inf) {
  if (auto* skippable = dynamic_cast<SkippableOptimizer*>(&optimizer)) {
    skippable->step_unless(found_inf);
  } else if (found_inf.item<float>() == 0) {
    optimizer.step();
  } else if (auto* sharded = dynamic_cast<ShardedOptimizerBase*>(&optimizer)) {
    sharded->zero_grad();  // gradients that nobody uses
  }
  update(found_inf);
}

void GradientScaler::update(const Tensor& found_inf) {
  torch::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf.to(scale_.device()), options_.growth,
                         options_.backoff, options_.growth_interval);
}

void GradientScaler::load(const Tensor& scale, const Tensor& growth_tracker) {
  require(scale.numel() == 1 && growth_tracker.numel() == 1,
          "[GradientScaler] expected a scale and a growth tracker of one element");
  scale_.copy_(scale.reshape({}));
  growth_tracker_.copy_(growth_tracker.reshape({}));
}

NamedTensors GradientScaler::state() const {
  return {{kScale, scale_}, {kGrowthTracker, growth_tracker_}};
}

void GradientScaler::load_state(const NamedTensors& state) {
  Tensor scale, growth_tracker;
  for (const auto& [name, tensor] : state) {
    if (name == kScale) scale = tensor;
    if (name == kGrowthTracker) growth_tracker = tensor;
  }
  require(scale.defined() && growth_tracker.defined(),
          "[resume] expected the checkpoint of an fp16 run with its loss scale, got one without");
  load(scale, growth_tracker);
}

}  // namespace flashstep
