// Which tensors are shards of which units: optimizers know parameters alone.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "flashstep/sharded_units.h"

namespace flashstep {

// From now on `tensor` is one that `units` divide, until these are gone; then it is forgotten. They
// keep it until then, so that no other gets its place.
void note_divided(const at::Tensor& tensor, const std::weak_ptr<ShardedUnits>& units);
void forget_divided(const at::Tensor& tensor);

}  // namespace flashstep
