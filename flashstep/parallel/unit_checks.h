// What must hold before units of tensors are divided between ranks.
#pragma once

#include <vector>

#include "flashstep/group.h"
#include "flashstep/sharded_units.h"

namespace flashstep {

// All ranks must divide the same tensors alike: UserError, on all ranks, that names the first
// difference from rank 0, or says that there are not ranks for whole copies of the weights. And
// UserError that names the first tensor that cannot be divided.
void check_units(const std::vector<UnitOfTensors>& units, const Group& group,
                 const FullyShardOptions& options);

}  // namespace flashstep
