// Buffers that differ by rank (running statistics) in a checkpoint, whose model has rank 0's.
#pragma once

#include <string>

#include "flashstep/detail/named_tensors.h"
#include "flashstep/loop.h"
#include "flashstep/parallel/stored_tensors.h"

namespace flashstep {

// ".buffers/1/norm.running_mean" is rank 1's; no parameter's name begins with a dot.
inline constexpr const char* kRankBuffers = ".buffers/";

// On rank 0 those of the other ranks that are not equal to its own; none on the others. All ranks
// call it.
NamedTensors rank_buffers(const Job& job);

// This rank's, of what as many ranks have written; the module has rank 0's. Reads all.
void load_rank_buffers(const Job& job, const StoredTensors& written);

}  // namespace flashstep
