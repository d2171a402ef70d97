// Mixed precision: gradients in 16 bits, and the loss scaling that float16 gradients need.
#pragma once

#include <string>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "flashstep/detail/named_tensors.h"
#include "flashstep/ops.h"

namespace flashstep {

// From now on the gradients of matrices (parameters with several dimensions) are kept as `dtype`:
// those that products under autocast leave in bfloat16 anyway are then not widened, and nobody who
// reads, sends or sums them moves twice the bytes. Vectors stay float32.
void keep_gradients_in(torch::ScalarType dtype, const std::vector<torch::Tensor>& parameters);

// Matrices become `dtype`, vectors float32; before an optimizer, a wrapper or a gradient knows
// them. AdamW with bfloat16 moments (keep_moments_in) rounds its updates of bfloat16 weights by
// chance.
void keep_weights_in(torch::ScalarType dtype, const std::vector<torch::Tensor>& parameters);

// Scales the loss up before backward so that float16 gradients do not vanish, scales gradients down
// after it, and adapts the factor: halved when a gradient overflowed, doubled after
// `growth_interval` steps without (Micikevicius et al., "Mixed Precision Training", 2018). All of
// it stays on the device.
class GradientScaler {
 public:
  struct Options {
    double initial_scale = 65536;
    double growth = 2, backoff = 0.5;
    int64_t growth_interval = 2000;  // steps
  };
  explicit GradientScaler(torch::Device device);
  GradientScaler(torch::Device device, Options options);

  torch::Tensor scale_loss(const torch::Tensor& loss) const {
    return loss * scale_.to(loss.device());
  }

  // Divides the gradients by the scale in place. Returns () float32: 1 if any value was not finite,
  // else 0.
  torch::Tensor unscale(const std::vector<torch::Tensor>& gradients) const;

  // The same for the gradients that `optimizer` uses, wherever they lie: with divided gradients the
  // answer is that of all ranks, which all call it.
  torch::Tensor unscale(torch::optim::Optimizer& optimizer) const;

  // After the optimizer's step.
  void update(const torch::Tensor& found_inf);
  // optimizer.step(), unless found_inf is 1, and update(). The host does not wait for the device
  // where the optimizer is flashstep's AdamW, sharded or not.
  void step(torch::optim::Optimizer& optimizer, const torch::Tensor& found_inf);

  // () float32 and () int32: what a checkpoint keeps.
  const torch::Tensor& scale() const { return scale_; }
  const torch::Tensor& growth_tracker() const { return growth_tracker_; }
  void load(const torch::Tensor& scale, const torch::Tensor& growth_tracker);
  // The same by name, among others' tensors. UserError where they are missing.
  NamedTensors state() const;
  void load_state(const NamedTensors& state);

 private:
  Options options_;
  torch::Tensor scale_, growth_tracker_;
};

}  // namespace flashstep
