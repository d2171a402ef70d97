// Checkpoints that go from one rank to others: only rank 0 needs the files.
#pragma once

#include <functional>
#include <optional>

#include "flashstep/checkpoint.h"
#include "flashstep/group.h"

namespace flashstep {

// Rank 0's checkpoint (or that it has none) on every rank, but for the optimizer's tensors, which
// stay where they are. All ranks call it; the others' argument is ignored.
std::optional<Checkpoint> share_checkpoint(std::optional<Checkpoint> checkpoint,
                                           const Group& group);

// What a rank goes on holding of the tensors of one parameter.
using KeepFunction = std::function<NamedTensors(NamedTensors)>;

// Rank 0's `state` ("NAME/KIND", or pieces: parallel/state_pieces.h) on every rank, one parameter
// after the other, so that no rank but the first holds more of it than `keep` returns, and one
// parameter's. Tensors of none of the `parameters` come one by one. All ranks call it; the others'
// state is ignored.
NamedTensors share_state(NamedTensors state, const NamedTensors& parameters, const Group& group,
                         const KeepFunction& keep);

}  // namespace flashstep
