// The libraries below c10d, called directly: what an all-reduce costs without anything above it.
#pragma once

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "flashstep/group.h"

namespace flashstep::tools {

// Sums one tensor over the ranks, in place, in a loop of its own. Every rank makes and calls it.
class BareAllreduce {
 public:
  virtual ~BareAllreduce() = default;
  // NCCL: launched on the current stream. Gloo: done on return.
  virtual void run() = 0;
};

// ncclAllReduce on a communicator of its own. MachineError in a build without CUDA.
std::unique_ptr<BareAllreduce> make_bare_nccl(const Group& group, at::Tensor tensor);

// gloo::allreduce, the ring that c10d takes, on the connections of the group and in this thread.
std::unique_ptr<BareAllreduce> make_bare_gloo(const Group& group, at::Tensor tensor);

}  // namespace flashstep::tools
