// One unit of fully sharded tensors: its shards, how they become whole, and how whole gradients
// become the shards'.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/group.h"
#include "flashstep/parallel/side_stream.h"
#include "flashstep/parallel/unit_messages.h"
#include "flashstep/sharded_units.h"

namespace flashstep {

class ShardedUnit {
 public:
  // `group`: those that divide the tensors.
  ShardedUnit(const UnitOfTensors& tensors, const Group& group, const FullyShardOptions& options);

  // What carries it, from the beginning on.
  void use(std::unique_ptr<UnitMessages> messages) { messages_ = std::move(messages); }

  const std::string& name() const { return name_; }
  ShardedTensors& tensors() { return tensors_; }
  const ShardedTensors& tensors() const { return tensors_; }
  at::Device device() const { return device_; }
  bool has_trained() const;
  bool has_frozen() const;
  // Another number when autograd takes gradients of its tensors anew, beside those of earlier
  // forwards: each time that it becomes whole, where that changes a dtype.
  int64_t accumulators() const { return accumulators_; }

  // Sends the shards (all-gather); nothing if that was done. All ranks call it.
  void start_gather(SideStream& stream);
  // Its tensors are whole (on a GPU: when the current stream goes on).
  void finish_gather(SideStream& stream);
  // Waiting for a gather has failed, and others may still write to where it arrives: that stays.
  bool has_lost_gather() const { return state_ == State::kInFlight && waits_; }
  bool is_whole() const { return state_ == State::kWhole; }
  bool is_sharded() const { return state_ == State::kSharded; }
  // Values that its tensors were given in other memory (torch::load, set_data) go into the shards.
  // UserError for what no shard can take.
  void take_values();
  // Its tensors are shards, and what was whole has no memory.
  void reshard(SideStream& stream);
  // Whether `tensor` lies in the memory of whole tensors.
  bool lends(const at::Tensor& tensor) const;
  int64_t gathered_bytes() const { return static_cast<int64_t>(room_.storage().nbytes()); }

  // Takes the gradients of the whole tensors away and starts to send them; where one is expected
  // and missing, it counts as `missing`. `used_beside`: as UnitMessages. All ranks call it.
  void start_reduction(SideStream& stream, double missing, bool used_beside = false);
  void continue_reduction(SideStream& stream) {  // as UnitMessages
    const at::NoGradGuard no_grad;
    messages_->continue_reduction(tensors_, stream);
  }
  // The shards' gradients are the means, added to what was there (on a GPU: when `stream` is
  // joined).
  void finish_reduction(SideStream& stream);

  void give_up(SideStream& stream) { messages_->give_up(stream); }  // as UnitMessages

  // One of its tensors whole, in its own dtype: a copy. All ranks of the group call it.
  at::Tensor gather_copy(const ShardedTensor& t) const;

 private:
  enum class State { kSharded, kInFlight, kWhole };
  void add(const at::Tensor& tensor, const std::string& name, const FullyShardOptions& options);
  void make_room();

  std::string name_;
  const Group& group_;
  at::Device device_ = at::kCPU;
  ShardedTensors tensors_;
  at::Tensor room_;  // bytes: what whole tensors lie in, one behind the other, while there are some
  int64_t room_bytes_ = 0;
  State state_ = State::kSharded;
  bool waits_ = false;  // for a gather
  bool casts_ = false;
  int64_t accumulators_ = 0;
  std::unique_ptr<UnitMessages> messages_;
};

}  // namespace flashstep
