// The optimizer in backward: parameters are updated as soon as their gradients are there, and these
// dropped, so that the gradients of a model never lie in memory together.
#pragma once

#include <memory>
#include <unordered_set>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "flashstep/loop.h"
#include "flashstep/parallel/gradient_hooks.h"

namespace flashstep {

// Of a process alone, or of fully sharded parameters. A parameter's gradient must be complete when
// autograd has added to it once.
class UpdateInBackward {
 public:
  // Both must outlive it.
  UpdateInBackward(torch::optim::Optimizer& optimizer, Parallelism& parallel);
  ~UpdateInBackward();
  UpdateInBackward(const UpdateInBackward&) = delete;
  UpdateInBackward& operator=(const UpdateInBackward&) = delete;

  // Before a backward. `skip`: () float32, 1 if it shall update nothing. What gets a gradient that
  // is not finite is not updated either.
  void begin(const torch::Tensor& skip);
  // After it: the rest is updated. Returns the L2 norm of all gradients, () float32.
  torch::Tensor end();

 private:
  void hook();  // what the optimizer updates and wants a gradient now
  void fired(const torch::Tensor& parameter);
  void update_pending();
  void update(const torch::Tensor& not_finite);

  torch::optim::Optimizer& optimizer_;
  ShardedUnits* const units_;  // null: a process alone, which does by hooks what units do for it
  torch::Tensor skip_;
  std::vector<torch::Tensor> pending_;     // have gradients
  size_t pending_bytes_ = 0;               // of these
  std::unordered_set<const void*> fired_;  // parameters, in this backward
  torch::Tensor square_;                   // of the norm of those that were dropped
  std::vector<torch::Tensor> hooked_;
  std::unique_ptr<GradientHooks> hooks_;
};

}  // namespace flashstep
