// What .grad holds where every rank has a share of the mean and none has all of it.
#pragma once

#include <ATen/core/Tensor.h>

namespace flashstep {

// A tensor without data. Whoever looks into it (torch::nn::utils::clip_grad_norm_, say, which would
// find nothing to clip) gets a UserError that says what to call instead; nothing but defined(),
// dtype and device can be asked of it.
at::Tensor divided_gradient(at::ScalarType dtype, at::Device device);

bool is_divided_gradient(const at::Tensor& gradient);

}  // namespace flashstep
