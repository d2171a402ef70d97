#include "flashstep/parallel/gradient_hooks.h"

#include <utility>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "flashstep/base/called_back.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

using torch::autograd::PostAccumulateGradHook;

struct Hook : PostAccumulateGradHook {
  std::unique_ptr<PostAccumulateGradHook> earlier;
  std::shared_ptr<std::function<void(int64_t)>> fired;
  int64_t index;
  bool averages;

  Hook(std::unique_ptr<PostAccumulateGradHook> earlier,
       std::shared_ptr<std::function<void(int64_t)>> fired, int64_t index, bool averages)
      : earlier(std::move(earlier)), fired(std::move(fired)), index(index), averages(averages) {}

  // Its object has not ended.
  bool is_averaging() const { return averages && *fired; }

  void operator()(const at::Tensor& parameter) override {
    if (is_averaging()) called_back([&] { check_alone(); });
    if (earlier) (*earlier)(parameter);
    if (*fired) called_back([&] { (*fired)(index); });
  }

  void check_alone() const {
    const auto next = [](const Hook* hook) {
      return dynamic_cast<const Hook*>(hook->earlier.get());
    };
    for (const Hook* other = next(this); other != nullptr; other = next(other)) {
      require(
          !other->is_averaging(),
          "[parallel] expected a parameter's gradient to be averaged by one reducer, got two: of ",
          "what wraps a module (DistributedDataParallel, FullyShardedDataParallel, "
          "data_parallelism, GradientReducer) one alone may live");
    }
  }
};

}  // namespace

GradientHooks::GradientHooks(std::vector<at::Tensor> parameters, std::function<void(int64_t)> fired,
                             bool averages)
    : parameters_(std::move(parameters)),
      fired_(std::make_shared<std::function<void(int64_t)>>(std::move(fired))) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto earlier = std::move(torch::autograd::impl::post_acc_grad_hooks(parameters_[i]));
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameters_[i],
        std::make_unique<Hook>(std::move(earlier), fired_, static_cast<int64_t>(i), averages));
  }
}

GradientHooks::~GradientHooks() {
  *fired_ = nullptr;
  for (const at::Tensor& parameter : parameters_) {
    auto& slot = torch::autograd::impl::post_acc_grad_hooks(parameter);
    // Somebody who came later has put ours behind theirs: it stays there and does nothing.
    auto* ours = dynamic_cast<Hook*>(slot.get());
    if (ours == nullptr || ours->fired != fired_) continue;
    slot = std::unique_ptr<PostAccumulateGradHook>(std::move(ours->earlier));
  }
}

}  // namespace flashstep
