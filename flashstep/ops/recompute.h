// Activation checkpointing: what lies between a call's inputs and outputs is not kept for backward
// but computed once more there.
#pragma once

#include <functional>
#include <vector>

#include <torch/types.h>

namespace flashstep {

using RecomputedCall = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

struct RecomputeOptions {
  // The second call draws the random numbers of the first one (dropout). Without it the generators
  // are left alone, which is right for calls that draw none, and saves copies of their states.
  bool same_random_numbers = true;
};

// call(inputs), of which only `inputs` are kept. Backward calls it once more, with the same random
// numbers, autocast and inputs, and goes back through what it did then: parameters that it reads
// get the gradients that they would have got, hooks on them fire as usual. The two calls have to do
// the same work; what a call counts or averages in a buffer, it does twice. `call` may be kept as
// long as the graph. It must not write its inputs; tensors with a graph of their own go in as
// inputs, not by capture. The outputs want gradients. Random numbers are the CPU's and those of the
// first GPU among the inputs; in a CUDA graph there can be none.
// Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).
//
// UserError: an input or an output is undefined, or `call` wrote an input. In backward: the second
// call returned other shapes or dtypes, or gradients were asked for by torch::autograd::grad or
// backward(inputs), which would miss the parameters inside, or with create_graph.
std::vector<at::Tensor> recompute(RecomputedCall call, std::vector<at::Tensor> inputs,
                                  RecomputeOptions options = {});

// The same for one tensor in and one out.
at::Tensor recompute(std::function<at::Tensor(const at::Tensor&)> call, const at::Tensor& input,
                     RecomputeOptions options = {});

}  // namespace flashstep
