// The shards' gradients when they are the means: their norm, and an optimizer that uses them up in
// backward.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/group.h"
#include "flashstep/parallel/side_stream.h"
#include "flashstep/parallel/unit.h"

namespace flashstep {

class UnitGradients {
 public:
  // `group`: the ranks that divide the tensors of `units`. Both must outlive it.
  UnitGradients(std::vector<ShardedUnit>& units, const Group& group, at::Device device)
      : units_(units), group_(group), device_(device) {}

  // As the functions of ShardedUnits.
  at::Tensor norm() const;
  at::Tensor clip(double max_norm);
  void update_in_backward(std::function<void(const at::Tensor& not_finite)> update);

  bool are_used_in_backward() const { return update_ != nullptr; }
  void begin_backward() { dropped_ = {}; }
  // Calls the optimizer for what unit `unit` has, which must be shards, and drops that.
  void use(size_t unit);
  // What norm() needs of those that were dropped on `stream`, for the current one.
  void hand_over(const SideStream& stream) const;

 private:
  void use(size_t unit, bool divided);
  // Of what this rank has of the gradients of tensors that are divided, or are not.
  at::Tensor own_norm(bool divided) const;
  std::vector<at::Tensor> gradients(bool divided) const;

  std::vector<ShardedUnit>& units_;
  const Group& group_;
  const at::Device device_;
  std::function<void(const at::Tensor& not_finite)> update_;  // or empty
  std::array<at::Tensor, 2> dropped_;  // squared norms of gradients that it used: whole, divided
};

}  // namespace flashstep
