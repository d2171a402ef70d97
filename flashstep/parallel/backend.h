// Which backend carries tensors.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/comm/group.h"

namespace flashstep::parallel {

// Whether all of them travel through NCCL, which averages by itself and takes tensors where they
// lie. False for no tensors, and for a single process.
bool goes_through_nccl(const std::vector<at::Tensor>& tensors, const comm::Group& group);

}  // namespace flashstep::parallel
