// Optimizers whose update can be called off on the device.
#pragma once

#include <torch/types.h>

namespace flashstep::train {

class SkippableOptimizer {
 public:
  virtual ~SkippableOptimizer() = default;
  // step(), unless `found_inf`, () float32, is 1: then nothing changes, decided on the device.
  virtual void step_unless(const torch::Tensor& found_inf) = 0;
};

}  // namespace flashstep::train
