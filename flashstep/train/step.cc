#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "flashstep/comm/agreement.h"
#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/loop.h"
#include "flashstep/optim.h"
#include "flashstep/profiling.h"
#include "flashstep/train/optimizer_parameters.h"
#include "flashstep/train/update_in_backward.h"

namespace flashstep {

using torch::Tensor;

namespace {

constexpr const char* kAveragingLoss = "averaging the loss";

// 1 if `value` is not finite, () float32. Whatever is not makes NaN of a zero: three kernels, where
// isfinite() alone takes four.
Tensor is_not_finite(const Tensor& value) { return value.detach().mul(0).ne(0).to(at::kFloat); }
// The same of either.
Tensor is_not_finite(const Tensor& loss, const Tensor& norm) {
  return is_not_finite(loss.add(norm, /*alpha=*/0));
}

}  // namespace

Precision precision_by_name(const std::string& name) {
  if (name == "fp32") return Precision::kFloat32;
  if (name == "bf16") return Precision::kBFloat16;
  require(name == "fp16", "[train] expected a precision of fp32, bf16 or fp16, got ", name);
  return Precision::kFloat16;
}

TrainStep::TrainStep(std::vector<Tensor> parameters, torch::optim::Optimizer& optimizer,
                     LossFunction loss, StepOptions options, std::shared_ptr<Parallelism> parallel,
                     StageFunction stage)
    : parameters_(each_once(std::move(parameters))),
      optimizer_(optimizer),
      loss_(std::move(loss)),
      stage_(std::move(stage)),
      options_(options),
      parallel_(parallel ? std::move(parallel) : std::make_shared<Parallelism>()),
      device_(parameters_.empty() ? torch::kCPU : parameters_.front().device()) {
  require(!parameters_.empty(), "[train] expected a module with parameters, got none");
  require(options_.accumulation_steps >= 1,
          "[train] expected at least 1 micro-batch in a step, got ", options_.accumulation_steps);
  require(options_.max_norm >= 0, "[train] expected a max_norm of at least 0, got ",
          options_.max_norm);
  if (options_.precision == Precision::kFloat16)
    scaler_ = std::make_unique<GradientScaler>(device_);
  if (!options_.update_in_backward) return;
  // The same on all ranks.
  const auto expect = [](bool holds, const char* what, const char* why, const auto& got) {
    if (holds) return;
    throw AgreedError(flashstep::str("[train] expected ", what, " with optimizer.in_backward, ",
                                     "which updates before ", why, ", got ", got));
  };
  expect(options_.max_norm == 0, "optimizer.clip_norm 0", "the norm of all gradients is known",
         options_.max_norm);
  expect(options_.accumulation_steps == 1, "train.accumulation_steps 1", "a second micro-batch",
         options_.accumulation_steps);
  expect(!scaler_, "a precision of fp32 or bf16", "all gradients are known to be finite", "fp16");
  expect(parallel_->world_size() == 1 || parallel_->units() != nullptr,
         "one process, or parallel.shard_optimizer full,", "gradients are averaged",
         flashstep::str(parallel_->world_size(), " processes"));
  in_backward_ = std::make_shared<UpdateInBackward>(optimizer_, *parallel_);
}

void TrainStep::stage(int64_t step, int64_t micro_step) {
  if (stage_) stage_(step, micro_step);
}

// Sends the step's loss, which arrives while backward runs.
void TrainStep::begin_loss_mean() {
  mean_loss_ = losses_;
  const Group* const group = parallel_->group();
  if (group == nullptr) return;
  mean_loss_ = losses_ / static_cast<double>(group->world_size());
  std::vector<Tensor> message = {mean_loss_};
  averaging_ =
      group->guarded(kAveragingLoss, [&] { return group->process_group().allreduce(message); });
}

Tensor TrainStep::loss_mean() {
  if (averaging_) parallel_->group()->wait(std::exchange(averaging_, nullptr), kAveragingLoss);
  return mean_loss_;
}

void TrainStep::add_micro_batch(int64_t step, int64_t micro_step) {
  if (micro_step == 0) optimizer_.zero_grad();
  const bool is_last = micro_step + 1 == options_.accumulation_steps;
  const std::shared_ptr<void> held = parallel_->begin_micro_batch(is_last);
  Tensor loss;
  {
    const ScopedRange range("forward");
    std::optional<AutocastGuard> autocast;
    if (options_.precision != Precision::kFloat32) {
      autocast.emplace(device_.type(),
                       options_.precision == Precision::kBFloat16 ? at::kBFloat16 : at::kHalf);
    }
    loss = parallel_->call([&] { return loss_(step, micro_step); });
  }
  require(loss.defined() && loss.numel() == 1,
          "[train] expected the loss function to return one number, got ",
          loss.defined() ? flashstep::str("shape ", loss.sizes()) : "an undefined tensor");
  loss = loss.reshape({}).to(at::kFloat);
  if (options_.accumulation_steps > 1)
    loss = loss / static_cast<double>(options_.accumulation_steps);
  losses_ = micro_step == 0 ? loss.detach() : losses_.add_(loss.detach());
  if (is_last) begin_loss_mean();
  const ScopedRange range("backward");
  if (in_backward_) in_backward_->begin(is_not_finite(loss_mean()));  // all ranks skip, or none
  (scaler_ ? scaler_->scale_loss(loss) : loss).backward();
}

void TrainStep::update(const Tensor& skip, const Tensor& norm,
                       const std::vector<Tensor>& gradients) {
  const bool clips = options_.max_norm > 0;
  auto* const skippable = dynamic_cast<SkippableOptimizer*>(&optimizer_);
  if (skippable != nullptr && clips) {
    skippable->step_clipped_unless(skip, {norm, options_.max_norm}, gradients);
  } else if (skippable != nullptr) {
    skippable->step_unless(skip);
  } else {
    if (clips) clip_to_norm(gradients, norm, options_.max_norm);
    if (skip.item<float>() == 0) optimizer_.step();
  }
}

Tensor TrainStep::norm_of(const std::vector<Tensor>& gradients) const {
  const GradientReducer* const reducer = parallel_->reducer();
  const bool of_all =
      reducer != nullptr && reducer->reduced_parameters().size() == parameters_.size();
  const Tensor known = of_all && !scaler_ ? reducer->gradient_norm() : Tensor();
  return known.defined() ? known : global_norm(optimizer_, gradients);
}

StepResult TrainStep::run(int64_t step) {
  for (int64_t micro_step = 0; micro_step < options_.accumulation_steps; ++micro_step) {
    stage(step, micro_step);
    add_micro_batch(step, micro_step);
  }
  return finish();
}

StepResult TrainStep::finish() {
  if (in_backward_) {
    const Tensor norm = in_backward_->end().to(device_), loss = loss_mean();
    return {loss, norm, is_not_finite(loss, norm)};
  }
  parallel_->synchronize_gradients();
  const Tensor loss = loss_mean();

  const ScopedRange range("optimizer");
  const std::vector<Tensor> gradients = gradients_of(optimizer_);
  Tensor overflow;
  if (scaler_) overflow = scaler_->unscale(gradients);
  const Tensor norm = norm_of(gradients);
  Tensor skip = is_not_finite(loss, norm.to(device_));
  if (scaler_) skip = at::maximum(skip, overflow);
  update(skip, norm, gradients);
  if (scaler_) scaler_->update(skip);
  return {loss, norm, skip};
}

NamedTensors TrainStep::state() const { return scaler_ ? scaler_->state() : NamedTensors(); }

void TrainStep::load_state(const NamedTensors& state) {
  if (scaler_) scaler_->load_state(state);
}

}  // namespace flashstep
