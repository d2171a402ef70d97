#include "flashstep/train/update_in_backward.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "flashstep/optim.h"
#include "flashstep/sharded_units.h"
#include "flashstep/train/optimizer_parameters.h"

namespace flashstep {
namespace {

using torch::Tensor;

// An update is worth its launches: so many bytes of gradients wait for each other.
constexpr size_t kUpdateBytes = size_t{64} << 20;

}  // namespace

UpdateInBackward::UpdateInBackward(torch::optim::Optimizer& optimizer, Parallelism& parallel)
    : optimizer_(optimizer), units_(parallel.units()) {
  if (units_ != nullptr)
    units_->update_in_backward([this](const Tensor& not_finite) { update(not_finite); });
}

UpdateInBackward::~UpdateInBackward() {
  if (units_ != nullptr) units_->update_in_backward({});
}

void UpdateInBackward::hook() {
  std::vector<Tensor> trained = each_once(parameters_of(optimizer_));
  std::erase_if(trained, [](const Tensor& parameter) { return !parameter.requires_grad(); });
  if (std::ranges::equal(trained, hooked_,
                         [](const Tensor& a, const Tensor& b) { return a.is_same(b); }))
    return;
  hooks_.reset();  // it gives places back that the next one takes
  hooked_ = std::move(trained);
  hooks_ = std::make_unique<GradientHooks>(
      hooked_, [this](int64_t i) { fired(hooked_[static_cast<size_t>(i)]); });
}

void UpdateInBackward::begin(const Tensor& skip) {
  if (units_ == nullptr) hook();
  skip_ = skip;
  square_.reset();
  pending_.clear();  // of a backward that broke off
  pending_bytes_ = 0;
  fired_.clear();
}

// A call that is computed again (recompute) has a backward of its own: a module that is called
// twice gets its gradient in two parts, and the second would see what the first has updated.
void UpdateInBackward::fired(const Tensor& parameter) {
  require(fired_.insert(parameter.unsafeGetTensorImpl()).second,
          "[train] expected, for the optimizer in backward, each gradient at once, got a second "
          "part of one of shape ",
          parameter.sizes(), ": a module is called several times with recompute");
  pending_.push_back(parameter);
  pending_bytes_ += parameter.numel() * parameter.grad().element_size();
  if (pending_bytes_ >= kUpdateBytes) update_pending();
}

void UpdateInBackward::update_pending() {
  const torch::NoGradGuard no_grad;
  const std::vector<Tensor> gradients = gradients_of(pending_);
  if (!gradients.empty()) {
    const Tensor norm = grad_norm(gradients);
    square_ = square_.defined() ? square_ + norm.square() : norm.square();
    update(norm.isfinite().logical_not().to(at::kFloat));
  }
  for (const Tensor& parameter : pending_) parameter.mutable_grad().reset();
  pending_.clear();
  pending_bytes_ = 0;
}

Tensor UpdateInBackward::end() {
  if (units_ != nullptr) return units_->gradient_norm();
  update_pending();
  return square_.defined() ? square_.sqrt() : grad_norm({});
}

void UpdateInBackward::update(const Tensor& not_finite) {
  const Tensor skip = at::maximum(skip_, not_finite.to(skip_.device()));
  if (auto* const skippable = dynamic_cast<SkippableOptimizer*>(&optimizer_)) {
    skippable->step_unless(skip);
  } else if (skip.item<float>() == 0) {
    optimizer_.step();
  }
}

}  // namespace flashstep
