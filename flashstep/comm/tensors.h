// Collectives on one tensor, for everyday use; all others: Group::process_group().
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "flashstep/group.h"

namespace flashstep {

// Overwrites a contiguous CPU or CUDA tensor with its sum (mean, ...) over the ranks, element by
// element; kMean is for floating-point ones. Through NCCL it is launched on the current stream,
// whose later work sees the result. A CUDA tensor of a group without NCCL goes through Gloo and the
// host's memory. Throws as Group::wait does; `what` says what this rank was doing.
void all_reduce(const Group& group, at::Tensor tensor, Reduce reduce,
                const std::string& what = "all-reduce");

}  // namespace flashstep
