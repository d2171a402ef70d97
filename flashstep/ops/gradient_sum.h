// Gradients that are added up by the kernel that makes them. Autograd adds a new gradient to .grad
// in a pass of its own: 12 bytes a parameter in each micro-batch after the first, and 6 more where
// the new one is 16 bits wide. A backward whose last kernel can add takes the sum out of .grad,
// adds to it, and returns it as its gradient. Autograd finds .grad empty and keeps what it is
// given; hooks that run then see the sum, as always. A backward that throws meanwhile leaves .grad
// empty. For weights on GPUs, of which each has one thread of autograd: on a CPU several threads
// that call backward may meet at a weight.
#pragma once

#include <torch/types.h>

namespace torch::autograd {
struct AutogradContext;
}

namespace flashstep::internal {

// The dtype of the gradient that backward is to give a weight.
at::ScalarType gradient_dtype(const at::Tensor& weight);

// Whether the backward that is running may add to weight.grad itself: a leaf's of float32, on
// the stream on which autograd adds to it, dense or not yet there, which nobody else holds, and
// whose new part alone nobody is to see (a tensor hook, a hook before or behind autograd's
// addition, torch::autograd::grad).
bool may_add_to_gradient(const at::Tensor& weight);

// Of a function with one weight: forward keeps it, if it is a leaf; backward is given it where it
// has a gradient and may add to that, and else nothing.
void keep_weight(torch::autograd::AutogradContext* context, const at::Tensor& weight);
at::Tensor weight_to_add_to(torch::autograd::AutogradContext* context);

// weight.grad, which is undefined from now on.
at::Tensor take_gradient(const at::Tensor& weight);

}  // namespace flashstep::internal
