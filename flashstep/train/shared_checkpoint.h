// Tensors and checkpoints that go from one rank to others.
#pragma once

#include <optional>

#include "flashstep/comm/group.h"
#include "flashstep/train/checkpoint.h"

namespace flashstep::train {

// Rank 0's checkpoint (or that it has none) on every rank: only rank 0 needs the files. All ranks
// call it; the others' argument is ignored.
std::optional<Checkpoint> share_checkpoint(std::optional<Checkpoint> checkpoint,
                                           const comm::Group& group);

// Every rank's tensors, in rank order, on rank 0 (on the CPU); empty on the others.
NamedTensors gather_tensors(const NamedTensors& own, const comm::Group& group);

}  // namespace flashstep::train
