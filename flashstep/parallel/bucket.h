// One bucket: gradients of several parameters that one launch averages. They lie side by side in
// one flat tensor, or (`in_place`) stay where autograd has put them: NCCL takes many tensors in one
// launch, and copies between GPUs take them one by one, but small ones packed. Where gradients are
// divided (`scatter`), the full bucket is handed over, and nothing of it is left here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "flashstep/parallel/averaging.h"
#include "flashstep/parallel/buckets.h"
#include "flashstep/parallel/side_stream.h"

namespace flashstep {

class Bucket {
 public:
  Bucket(BucketLayout layout, const std::vector<at::Tensor>& all_parameters,
         const Averaging& averaging, SideStream& stream, const std::string& name, size_t number);

  // Takes the gradient of the parameter in slot `slot`; from now on .grad is the slot.
  // It has the layout's dtype.
  void fill(size_t slot);
  // Puts `value` where a gradient is missing. .grad stays undefined until attach().
  void fill_missing(size_t slot, double value);
  // With scatter: notes that some rank has a gradient there.
  void attach(size_t slot);
  bool is_filled(size_t slot) const { return filled_[slot]; }
  bool is_full() const { return ready_ == filled_.size(); }

  // Starts the all-reduce of a full bucket, with scatter what GradientScatter makes of it; all
  // ranks start theirs in the same order.
  void launch();
  // When it returns (on a GPU: when the current stream goes on), every slot is the mean, with
  // scatter this rank's part of it (GradientScatter::part).
  void wait();
  // From now on means from other GPUs stay where they arrive, from this byte on (PeerMean::mean),
  // and .grad lies there; small gradients' in memory of the bucket's own. Outside of graphs.
  void keep_means_at(size_t byte);
  // What they take of that memory.
  size_t kept_bytes() const;
  // The step is over: the memory belongs to the gradients alone.
  void release();
  // The same of a step that was broken off: what was started ends first, for it would be written
  // over the next step's gradients. (A graph that was never replayed has not started what it
  // holds.)
  void give_up();

  // Slot `slot` of this step; takes the bucket's memory if that was not done yet.
  at::Tensor slot(size_t slot);
  const BucketLayout& layout() const { return layout_; }

 private:
  // in_place: a gradient whose memory others look into too, and the stream that it was made on.
  struct Shared {
    size_t slot;
    c10::Stream stream;
  };
  at::TensorOptions gradient_options() const;
  bool packs() const;
  std::vector<int64_t> sizes() const;
  at::Tensor pack() const;
  bool divides_first() const { return !backend_averages_ && !widens_; }
  void take_memory();
  void fill_slot(size_t slot);
  void launch_scatter();
  bool lies_in_last_memory(const at::Tensor& gradient, size_t slot) const;
  void fill_in_place(size_t slot);
  void take_in_place(size_t slot, bool may_stay);
  bool are_neighbours(const std::vector<Shared>& slots) const;
  void take_shared();
  void unpack();
  void adopt(size_t slot, const at::Tensor& mean);
  const std::vector<at::Tensor>& parts() const { return averaging_.in_place ? pieces_ : flat_; }

  BucketLayout layout_;
  std::vector<at::Tensor> parameters_;  // those in the slots
  const Averaging& averaging_;
  SideStream& stream_;     // gradients are copied, and collectives launched, from here
  std::string name_;       // for messages
  size_t number_;          // among the buckets
  bool backend_averages_;  // NCCL divides by itself, Gloo only sums
  bool widens_;            // Gloo sums in float32, and divides there
  std::optional<at::ScalarType> wire_dtype_;  // else the gradients' own
  std::vector<at::Tensor> flat_;    // one (numel), gradients' dtype, or none; not in_place
  std::vector<at::Tensor> pieces_;  // in_place: each gradient as a flat tensor over its memory
  std::map<c10::StorageImpl*, std::vector<Shared>> shared_;  // by memory
  std::vector<at::Tensor> missing_;  // in_place: what .grad becomes where it is missing
  std::vector<at::Tensor> wire_;  // what travels: the parts, or copies in another dtype or packed
  std::optional<size_t> kept_at_;
  at::Tensor packed_;  // where small gradients lie from step to step; or undefined
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> last_memory_;  // flat_'s a step ago
  c10::intrusive_ptr<c10d::Work> work_;
  bool is_captured_ = false;  // work_ was started in a capture
  std::vector<bool> filled_;
  size_t ready_ = 0;
};

}  // namespace flashstep
