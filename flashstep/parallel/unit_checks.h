// What must hold before units of tensors are divided between ranks, and while they are called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "flashstep/group.h"
#include "flashstep/sharded_units.h"

namespace flashstep {

// All ranks must divide the same tensors alike: UserError, on all ranks, that names the first
// difference from rank 0, or says that there are not ranks for whole copies of the weights. And
// UserError that names the first tensor that cannot be divided.
void check_units(const std::vector<UnitOfTensors>& units, const Group& group,
                 const FullyShardOptions& options);

// Ranks that call different units mix weights of equal shapes. They compare their calls after the
// first forward, the second, the fourth, and so on, from some point on evenly: a comparison is of
// hosts, which wait for each other.
class CallsOfUnits {
 public:
  void add(size_t unit);
  // At the end of a forward, on all ranks: what to say, on every rank, if they differ; else empty.
  std::string compare(const Group& group);

 private:
  uint64_t hash_ = 0;  // of all calls, in their order
  uint64_t forwards_ = 0;
};

}  // namespace flashstep
