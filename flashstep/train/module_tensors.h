// A module's tensors by name, and how they are given the values of others.
#pragma once

#include <string>

#include <torch/nn/module.h>

#include "flashstep/detail/named_tensors.h"
#include "flashstep/loop.h"
#include "flashstep/parallel/stored_tensors.h"

namespace flashstep {

// Parameters and buffers by name, tied ones once.
NamedTensors module_tensors(const torch::nn::Module& module);

// The same; sharded parameters as they would be whole, on the meta device.
NamedTensors whole_tensors(const torch::nn::Module& module, const Parallelism& parallel);

// The elements of `tensor` become those of `value`, which has its shape. One that is expanded, of
// several elements in one place, gets memory of its own.
void set_value(at::Tensor tensor, const at::Tensor& value);

// UserError naming what `weights` lack, what they have too much, or what has another shape than in
// `own`, or another dtype that is not floating as its own is; `source` says where they come from.
void check_weights(const NamedTensors& own, const StoredTensors& weights,
                   const std::string& source);

// Weights alone, by name, into `module`, one after the other. UserError as check_weights.
void load_module(torch::nn::Module& module, const StoredTensors& weights,
                 const std::string& source);

// The same; of sharded parameters only this rank's elements are read. All ranks read the same
// tensors in the same order.
void load_module(torch::nn::Module& module, const Parallelism& parallel,
                 const StoredTensors& weights, const std::string& source);

}  // namespace flashstep
