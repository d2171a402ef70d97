// Optimizers whose update can be called off on the device.
#pragma once

#include <torch/torch.h>

namespace flashstep::train {

class SkippableOptimizer {
 public:
  virtual ~SkippableOptimizer() = default;
  // step(), unless `found_inf` is 1: then nothing changes, decided on the device. `found_inf` and
  // `grad_scale` (gradients are divided by it; may be undefined) are () float32 on the parameters'
  // device.
  virtual void step_unless(const torch::Tensor& found_inf,
                           const torch::Tensor& grad_scale = {}) = 0;
};

}  // namespace flashstep::train
