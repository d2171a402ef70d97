// Optimizers whose update can be called off on the device.
#pragma once

#include <vector>

#include <torch/types.h>

#include "flashstep/train/clip.h"

namespace flashstep {

// Gradients are taken times min(1, max_norm / (norm + 1e-6)).
struct Clipping {
  torch::Tensor norm;  // () float32, of all gradients
  double max_norm = 1;
};

class SkippableOptimizer {
 public:
  virtual ~SkippableOptimizer() = default;
  // step(), unless `found_inf`, () float32, is 1: then nothing changes, decided on the device.
  virtual void step_unless(const torch::Tensor& found_inf) = 0;
  // The same with clipped gradients. `gradients`: those that the step uses. An optimizer that can
  // takes the factor in its update and saves a pass over them; then they stay as they were, and who
  // reads .grad afterwards sees them not clipped.
  virtual void step_clipped_unless(const torch::Tensor& found_inf, const Clipping& clipping,
                                   const std::vector<torch::Tensor>& gradients) {
    clip_to_norm(gradients, clipping.norm, clipping.max_norm);
    step_unless(found_inf);
  }
};

}  // namespace flashstep
