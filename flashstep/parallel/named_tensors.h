// Named tensors on their way from rank to rank.
#pragma once

#include "flashstep/detail/named_tensors.h"
#include "flashstep/group.h"

namespace flashstep {

// Every rank's tensors, in rank order, on rank `to` (on the CPU); empty on the others. All
// ranks call it.
NamedTensors gather_tensors(const NamedTensors& own, const Group& group, int to = 0);

// Rank 0's tensors on every rank, on the CPU; the others' are ignored. All ranks call it.
void broadcast_tensors(NamedTensors& tensors, const Group& group);

}  // namespace flashstep
