// The engine behind FullyShardedDataParallel: units of tensors that are whole while they are used,
// and lie in shards between uses. It knows tensors and the order of their uses, no modules.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/detail/named_tensors.h"

namespace flashstep {

class Group;

// How parameters are divided; the same on all ranks.
struct FullyShardOptions {
  // Parameters are whole in this dtype: shards are cast before they travel, forward and backward
  // compute in it. Shards and the sum over the ranks stay as the parameters were made. Not given:
  // the parameters' own.
  std::optional<at::ScalarType> compute_dtype = std::nullopt;
  // false: parameters that are not divided (norms, biases) stay in their own dtype, for a forward
  // under autocast.
  bool cast_undivided = true;
  // A unit's parameters are freed after its forward and gathered again for its backward. false:
  // they stay until its backward is over, which saves a gather and costs their memory (where there
  // are no gradients yet: with some, an optimizer may step first).
  bool reshard_after_forward = true;
  // Whether a parameter is divided; unless given, those of two dimensions and more. The others are
  // whole on every rank, and their gradients averaged.
  std::function<bool(const std::string& name, const at::Tensor& parameter)> shard = nullptr;
  // Where shards lie; not given: where the parameters are.
  std::optional<at::Device> device = std::nullopt;
  // For a model that nothing has memory for: its parameters were made on the CPU, never written (so
  // that they take none) and are not read. This fills values (n), float32 on the CPU, with elements
  // [begin, begin + n) of parameter `name`, in the order of its memory; each rank asks for its own.
  std::function<void(const std::string& name, const at::Tensor& values, int64_t begin)> fill =
      nullptr;
  // Between GPUs of one machine copy engines carry parameters and gradients; false: NCCL.
  bool peer_copies = true;
  // So many consecutive ranks (of a machine, say) divide one copy of the weights; gradients are
  // averaged between the copies, the replicas, too (hybrid sharding, HSDP). 0: all ranks. UserError
  // unless it divides their number.
  int shard_ranks = 0;
  // The modules that are gathered one at a time, by their names in the wrapped module ("layers.0").
  // A parameter belongs to the innermost unit that holds it; what no unit holds, or several do
  // (tied weights), belongs to the wrapped module itself, which is the last unit. Empty: the
  // elements of every ModuleList and Sequential.
  std::vector<std::string> units = {};
};

// Tensors that are gathered and freed together.
struct UnitOfTensors {
  std::string name;
  std::vector<std::string> names;   // of the tensors, for messages and gather()
  std::vector<at::Tensor> tensors;  // distinct leaves, floating-point, dense, of one device
};

// What this rank keeps of a tensor between uses.
struct Shard {
  std::string name;
  at::Tensor tensor;  // the module's
  at::Tensor whole;   // of its shape, strides and dtype, on the meta device
  bool is_divided = true;
  bool is_first = true;        // no rank before this one has the same elements
  int64_t begin = 0, end = 0;  // its elements, in the order of the whole's memory
};

class ShardedUnits {
 public:
  virtual ~ShardedUnits() = default;

  // Around a forward of unit `unit`, on all ranks in the same order. Between the two calls its
  // tensors are whole. What the forward computed and others use is watched: its gradient is what
  // begins the unit's backward. What the forward is given is watched, before it: until its gradient
  // has come, frozen tensors stay whole. The outermost backward ends with the means of the
  // gradients in the shards' .grad, added to what lay there.
  virtual void begin_forward(size_t unit) = 0;
  virtual void watch_input(size_t unit, const at::Tensor& input) = 0;
  virtual void watch(size_t unit, const at::Tensor& output) = 0;
  virtual void end_forward(size_t unit) = 0;
  // After an exception: shards again, nothing is awaited, gradients as ended backwards left them.
  virtual void abandon() = 0;

  // True after a backward that has not come to its end.
  virtual bool is_unfinished() const = 0;
  // Whether unit `unit` was called since the root's last begin_forward.
  virtual bool was_called(size_t unit) const = 0;
  // Whether its shards were used as if they were its tensors.
  virtual bool was_called_past(size_t unit) const = 0;
  virtual size_t unit_count() const = 0;
  virtual const std::string& unit_name(size_t unit) const = 0;

  // The L2 norm of all ranks' gradients, () float32, the same bits on every rank; and the same, and
  // gradients are clipped to it. All ranks call them.
  virtual at::Tensor gradient_norm() const = 0;
  virtual at::Tensor clip_grad_norm(double max_norm) = 0;

  // The optimizer in backward: no gradient outlives its unit. From now on a backward calls `update`
  // when gradients of a unit are there as the shards' means (on a GPU: on the stream that the call
  // is under), and then drops them: once for the tensors that are divided, once for the others. A
  // unit that was called several times, and is computed again or has a compute_dtype, comes at the
  // end of backward. No other tensor has a gradient meanwhile, so the step() of an optimizer of all
  // shards updates these. `not_finite`: () float32, 1 if this rank found a gradient among them that
  // is not finite. gradient_norm() is that of the last backward's gradients; clip_grad_norm() a
  // UserError. Empty: as before.
  virtual void update_in_backward(std::function<void(const at::Tensor& not_finite)> update) = 0;

  // All tensors whole, in their own dtype, with their names; copies. All ranks call it. `to`: the
  // one rank that gets them, on the CPU; the others nothing.
  virtual NamedTensors gather(std::optional<int> to = std::nullopt) const = 0;
  // The same, each on one rank, on the CPU: the first replica's ranks have about as many bytes.
  virtual NamedTensors gather_evenly() const = 0;
  // In the order of gather().
  virtual std::vector<Shard> shards() const = 0;
  // Takes each rank's shards out of whole tensors of these names and shapes. Sends nothing.
  // UserError that names what is missing, unexpected or of another shape.
  void load(const NamedTensors& whole);
  // Takes what `part` returns for each of shards(), in their order: its elements, (end - begin), of
  // any dtype and device.
  virtual void load_parts(const std::function<at::Tensor(const Shard& shard)>& part) = 0;

  // Whether a CUDA graph can hold forward and backward, the same on all ranks: where copies between
  // GPUs carry the units, after steps that used them in the same order.
  virtual bool can_be_captured() const = 0;
  // What carries parameters and gradients between the ranks that divide them: "copies", "NCCL",
  // "Gloo", "" for one rank.
  virtual std::string transport() const = 0;

  // Bytes of whole tensors that lie in memory now.
  virtual int64_t gathered_bytes() const = 0;
};

// Takes the values that the tensors have on rank 0; from now on each tensor is this rank's shard of
// itself, (n, 1, 1) (more ones where that has no more dimensions than the whole), or, if it is not
// divided, whole; trained if it was. `group` must outlive it. UserError, on all ranks, that names
// the first unit, tensor or option in which two ranks differ. The last unit is the root: it is
// whole from its forward until its backward is over.
std::shared_ptr<ShardedUnits> shard_units(const std::vector<UnitOfTensors>& units,
                                          const Group& group, const FullyShardOptions& options);

}  // namespace flashstep
