// Which tensors are shards of which units: optimizers know parameters alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/sharded_units.h"

namespace flashstep {

// What is asked of units by those who found them by a tensor.
class DividingUnits : public ShardedUnits {
 public:
  // The ranks that divide the tensors.
  virtual const Group& shard_group() const = 0;
  // Whether update_in_backward() uses up the gradients.
  virtual bool updates_in_backward() const = 0;
};

// From now on `tensor` is one that `units` divide, until these are gone. They keep it until then,
// so that no other gets its place.
void note_divided(const at::Tensor& tensor, const std::weak_ptr<DividingUnits>& units);
// What divided `tensor` is gone, and leaves a shard.
void note_left_shard(const at::Tensor& tensor);
// UserError, which begins with `who`, of such a shard. One that was given values of another shape
// since is none.
void refuse_left_shard(const std::string& name, const at::Tensor& tensor, const char* who);

// Those of `tensors`, each once, that units divide between ranks, so that this rank has a shard: by
// units, in the order in which these come.
struct DividedTensors {
  std::shared_ptr<DividingUnits> units;
  std::vector<at::Tensor> tensors;
};
std::vector<DividedTensors> divided_tensors(const std::vector<at::Tensor>& tensors);

// grad_norm() on `device`, also of no gradients at all, which a rank may have.
at::Tensor grad_norm_on(const at::Device& device, const std::vector<at::Tensor>& gradients);

// The L2 norm of the gradients of `parameters`, each once, () float32, the same bits on every rank:
// what lies in shards is summed up over the ranks, all of which call it. UserError where a backward
// has used such gradients.
at::Tensor norm_of_gradients(const std::vector<at::Tensor>& parameters);

// Whether `found`, () float32 0 or 1, is 1 on one of the ranks that divide some of `parameters`
// between them, all of which call it; where none do, `found`.
at::Tensor on_any_rank(const at::Tensor& found, const std::vector<at::Tensor>& parameters);

}  // namespace flashstep
