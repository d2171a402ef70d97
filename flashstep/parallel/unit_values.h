// What shards hold, between steps: as whole tensors, and taken out of such.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/detail/named_tensors.h"
#include "flashstep/group.h"
#include "flashstep/parallel/unit.h"
#include "flashstep/sharded_units.h"

namespace flashstep {

// As the functions of ShardedUnits.
NamedTensors gather_whole(const std::vector<ShardedUnit>& units, const Group& group,
                          std::optional<int> to);
NamedTensors gather_evenly(const std::vector<ShardedUnit>& units, const ShardGroups& groups);
std::vector<Shard> shards_of(const std::vector<ShardedUnit>& units, const ShardGroups& groups);
void load_parts(const std::vector<ShardedUnit>& units, const ShardGroups& groups,
                const std::function<at::Tensor(const Shard& shard)>& part);

}  // namespace flashstep
