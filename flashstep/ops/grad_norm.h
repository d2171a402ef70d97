// The global norm of gradients, and the factor that clips to it.
#pragma once

#include <vector>

#include <torch/types.h>

namespace flashstep {

// sqrt(sum of squares over all tensors), () float32 on the device of the first; 0 for none. Tensors
// may differ in shape, dtype and device. The host does not wait for it.
//
// float32, bfloat16 and float16 on one GPU: one pass over their memory, in two launches (1,360
// tensors each more is another). Sums of at most 32 squares are float32, sums of those float64, in
// an order that follows from the tensors' sizes alone: the same bits in every run. A square above
// float32's largest number, of an element above 1.8e19, is infinite.
at::Tensor grad_norm(const std::vector<at::Tensor>& tensors);

// The same by PyTorch's foreach kernels: float32 norms of the tensors (of float64, in float64), and
// their norm.
at::Tensor grad_norm_reference(const std::vector<at::Tensor>& tensors);

// min(1, max_norm / (norm + 1e-6)), the rule of torch's clip_grad_norm_ and of the course; () on
// the norm's device. UserError unless max_norm is above 0.
at::Tensor clip_factor(const at::Tensor& norm, double max_norm);

// Multiplies every gradient by clip_factor(norm, max_norm). Nothing is read back.
void clip_to_norm(const std::vector<at::Tensor>& gradients, const at::Tensor& norm,
                  double max_norm);

}  // namespace flashstep
