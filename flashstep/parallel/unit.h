// One unit of fully sharded tensors: its shards, how they become whole, and how whole gradients
// become the shards'.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "flashstep/group.h"
#include "flashstep/parallel/side_stream.h"
#include "flashstep/sharded_units.h"

namespace flashstep {

// A tensor of a unit. Rank r of W has elements [r part, (r + 1) part) in the order of its memory,
// of which the last rank's may be fewer, or none.
struct ShardedTensor {
  at::Tensor tensor;  // the module's: the shard, or the whole while the unit is used
  std::string name;
  std::vector<int64_t> sizes, strides;  // of the whole
  int64_t numel = 0;
  bool is_divided = true;     // else whole on every rank: the shard has all elements
  int64_t part = 0;           // elements of a rank's part, padding included
  int64_t own = 0;            // of this rank's shard
  int64_t offset = 0;         // of its part in a message, elements
  at::Tensor memory, shard;   // (part), and (own, 1, 1) over it
  at::Tensor whole, view;     // (W part) in the dtype of computing, and the whole's shape over it
  at::Tensor earlier;         // gradient of earlier backward passes, while another one goes on
  bool has_gradient = false;  // of this backward
};

class ShardedUnit {
 public:
  ShardedUnit(const UnitOfTensors& tensors, const Group& group, const FullyShardOptions& options);

  const std::string& name() const { return name_; }
  std::vector<ShardedTensor>& tensors() { return tensors_; }
  const std::vector<ShardedTensor>& tensors() const { return tensors_; }
  at::Device device() const { return device_; }

  // Sends the shards (all-gather); nothing if that was done. All ranks call it.
  void start_gather(SideStream& stream);
  // Its tensors are whole (on a GPU: when the current stream goes on).
  void finish_gather(SideStream& stream);
  bool is_whole() const { return state_ == State::kWhole; }
  bool is_sharded() const { return state_ == State::kSharded; }
  // Its tensors are shards, and what was whole has no memory.
  void reshard(SideStream& stream);
  int64_t gathered_bytes() const;

  // Takes the gradients of the whole tensors away and starts to send them; undefined ones count as
  // `missing`. Each rank sums up its shard in rank order, in float32 at least. All ranks call it.
  void start_reduction(SideStream& stream, double missing);
  // The shards' gradients are the means, added to what was there (on a GPU: when `stream` is
  // joined).
  void finish_reduction(SideStream& stream);

  // Every tensor whole, in its own dtype: copies, in the order of tensors(). All ranks call it;
  // where `keeps` is false nothing is returned.
  std::vector<at::Tensor> gather_copies(bool keeps) const;

 private:
  enum class State { kSharded, kInFlight, kWhole };
  // What travels, while it does.
  struct Message {
    c10::intrusive_ptr<c10d::Work> work;
    std::vector<at::Tensor> kept;  // until it has arrived
    at::Tensor received;           // (W, S): what each rank has sent for this one's shards
    at::Tensor sum;                // of the tensors that are not divided
    at::ScalarType dtype = at::kFloat;
  };
  void add(const at::Tensor& tensor, const std::string& name, const FullyShardOptions& options);
  bool needs_memory(const ShardedTensor& t) const;
  at::ScalarType sum_dtype() const;
  void pack(const at::Tensor& message, ShardedTensor& t, double missing);
  void add_gradient(ShardedTensor& t, const at::Tensor& flat, int64_t offset);

  std::string name_;
  const Group& group_;
  at::Device device_ = at::kCPU;
  std::vector<ShardedTensor> tensors_;
  int64_t divided_ = 0, replicated_ = 0;  // elements of messages: of a rank's parts; of the others
  State state_ = State::kSharded;
  Message gather_, reduction_;
};

}  // namespace flashstep
