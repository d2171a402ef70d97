// Named tensors on their way from rank to rank.
#pragma once

#include "flashstep/detail/named_tensors.h"
#include "flashstep/group.h"

namespace flashstep {

// Every rank's tensors, in rank order, on rank `to` (on the CPU); empty on the others. Names must
// not hold line ends. All ranks call it.
NamedTensors gather_tensors(const NamedTensors& own, const Group& group, int to = 0);

}  // namespace flashstep
