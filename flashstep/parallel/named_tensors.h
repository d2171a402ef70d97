// Named tensors on their way from rank to rank.
#pragma once

#include "flashstep/detail/named_tensors.h"
#include "flashstep/group.h"
#include "flashstep/parallel/stored_tensors.h"

namespace flashstep {

// Every rank's tensors, in rank order, on rank `to` (on the CPU); empty on the others. All
// ranks call it.
NamedTensors gather_tensors(const NamedTensors& own, const Group& group, int to = 0);

// Rank 0's, for all ranks to read; the others' are ignored. A read is a call of all ranks, which
// read the same tensors in the same order, each its own range; rank 0 reads tensors whole, and
// sends them, 16 MiB at a time. All ranks call it.
StoredTensors stored_on_first_rank(StoredTensors tensors, const Group& group);

}  // namespace flashstep
