// Checkpoints that go from one rank to others.
#pragma once

#include <optional>

#include "flashstep/comm/group.h"
#include "flashstep/train/checkpoint.h"

namespace flashstep::train {

// Rank 0's checkpoint (or that it has none) on every rank: only rank 0 needs the files. All ranks
// call it; the others' argument is ignored.
std::optional<Checkpoint> share_checkpoint(std::optional<Checkpoint> checkpoint,
                                           const comm::Group& group);

}  // namespace flashstep::train
