// How a unit's shards become whole tensors, and whole gradients the shards' means: by collectives
// of the group, or by copies between the GPUs of one machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/group.h"
#include "flashstep/parallel/side_stream.h"

namespace flashstep {

// A tensor of a unit. Rank r of W has elements [r part, (r + 1) part) in the order of its memory,
// of which the last rank's may be fewer, or none.
struct ShardedTensor {
  at::Tensor tensor;  // the module's: the shard, or the whole while the unit is used
  std::string name;
  std::vector<int64_t> sizes, strides;  // of the whole
  int64_t numel = 0;
  bool is_trained = false;   // when it was given
  bool is_divided = true;    // else whole on every rank: the shard has all elements
  int64_t part = 0;          // elements of a rank's part, padding included
  int64_t own = 0;           // of this rank's shard
  at::Tensor memory, shard;  // (part), and over it (own, 1, ..); undivided: of its own shape
  at::Tensor whole, view;    // (W part) in the dtype of computing, and the whole's shape over it
  int64_t place = 0;         // of whole in the unit's memory, bytes
  at::ScalarType gradient_dtype = at::kFloat;  // of the shard's
  at::Tensor earlier;         // gradient of earlier backward passes, while another one goes on
  bool has_gradient = false;  // of this backward

  // Its whole is something else than the shard, seen in another shape.
  bool needs_memory() const { return !whole.is_same(memory); }
  // Elements of rank `rank`'s part.
  int64_t elements_of(int rank) const;
  // The whole's gradient is taken away: flat (numel), in the order of memory. Undefined where there
  // is none, unless one was expected: then all of it is `missing`.
  at::Tensor take_gradient(double missing);
  // A backward's mean for this rank's elements, (own), is added to what was there.
  void add_gradient(const at::Tensor& mean);
};
using ShardedTensors = std::vector<ShardedTensor>;

// Whom a unit's messages go to.
struct ShardGroups {
  const Group* all;
  const Group* shards;              // those that divide a copy of the weights with this rank
  const Group* replicas = nullptr;  // those that have the same shards; null: there is one copy
};

// One unit's. All ranks call every function but memory(), in the same order.
class UnitMessages {
 public:
  virtual ~UnitMessages() = default;

  // Memory for the unit's whole tensors, until what is returned is gone.
  virtual c10::DataPtr memory(size_t bytes) = 0;

  virtual void start_gather(ShardedTensors& tensors, SideStream& stream) = 0;
  // The wholes are there (on a GPU: when the current stream goes on).
  virtual void finish_gather(SideStream& stream) = 0;

  // Takes the gradients of the whole tensors, and starts to send them. Each rank sums up its shards
  // in rank order, in float32 at least. `used_beside`: the means are used, and dropped, on
  // `stream`.
  virtual void start_reduction(ShardedTensors& tensors, SideStream& stream, double missing,
                               bool used_beside) = 0;
  // When they had time to arrive: between replicas the sums travel from here on.
  virtual void continue_reduction(const ShardedTensors& /*tensors*/, SideStream& /*stream*/) {}
  // The shards' gradients are the means, added to what was there (on a GPU: when `stream` is
  // joined).
  virtual void finish_reduction(ShardedTensors& tensors, SideStream& stream) = 0;

  // After an exception: nothing more is sent, as others may have got further. What was
  // started may never run, where a CUDA graph was to hold it.
  virtual void give_up(SideStream& stream) = 0;
};

// By the groups' collectives. `unit` is for messages.
std::unique_ptr<UnitMessages> make_collective_messages(const std::string& unit, at::Device device,
                                                       const ShardGroups& groups);

// What copies of all units share: memory that other ranks write into.
class UnitCopies {
 public:
  virtual ~UnitCopies() = default;
  virtual bool can_be_captured() const = 0;
  // Around what a CUDA graph may hold, on all ranks.
  virtual void begin() = 0;
  virtual void end(SideStream& stream) = 0;
  // After an exception, when the units have given up: what was launched and not captured comes
  // before what `stream` gets from now on.
  virtual void give_up(SideStream& stream) = 0;
  virtual std::unique_ptr<UnitMessages> messages() = 0;  // of a unit; must not outlive this
};

// Null, on all ranks, where some have no copies from GPU to GPU; between replicas NCCL carries the
// means. `units`: those that will use it. All ranks call it. The groups must outlive it.
std::unique_ptr<UnitCopies> make_unit_copies(const ShardGroups& groups, at::Device device,
                                             const std::vector<const ShardedTensors*>& units);

}  // namespace flashstep
