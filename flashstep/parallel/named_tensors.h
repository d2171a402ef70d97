// Tensors by name, as ranks hand them to each other and as files hold them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/comm/group.h"

namespace flashstep {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Every rank's tensors, in rank order, on rank `to` (on the CPU); empty on the others. Names must
// not hold line ends. All ranks call it.
NamedTensors gather_tensors(const NamedTensors& own, const Group& group, int to = 0);

}  // namespace flashstep
