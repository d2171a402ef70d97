// The libraries below c10d, called directly: what an all-reduce costs without anything above it.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include "flashstep/group.h"

namespace flashstep::tools {

// Each sums one tensor over the ranks, in place, in a loop of its own. Every rank makes and calls
// it.

// ncclAllReduce on a communicator of its own, launched on the current stream. MachineError in a
// build without CUDA.
std::function<void()> make_bare_nccl(const Group& group, at::Tensor tensor);

// gloo::allreduce, the ring that c10d takes, on the connections of the group and in this thread:
// done on return.
std::function<void()> make_bare_gloo(const Group& group, at::Tensor tensor);

}  // namespace flashstep::tools
