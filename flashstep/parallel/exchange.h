// Sending tensors from their owners to all other ranks, all owners at once, in rounds that overlap
// with whatever is done between start() and finish().
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "flashstep/comm/group.h"

namespace flashstep::parallel {

class Exchange {
 public:
  explicit Exchange(const comm::Group& group) : group_(group) {}

  // tensors[i], dense in memory, is overwritten on every rank with rank owners[i]'s. NCCL takes the
  // round in one launch, from where the tensors lie; Gloo in flat messages, one per owner, device
  // and dtype. All ranks call it, with tensors of the same shapes.
  void start(const std::vector<at::Tensor>& tensors, const std::vector<int>& owners);
  // The same, of equal parts: part r of each flat (numel), a multiple of the world size, comes from
  // rank r (all-gather). NCCL writes into the flats; c10d's Gloo gathers into a copy of the whole
  // flat first, so that of flats, too, two rounds of copies lie in memory.
  void start_gather(const std::vector<at::Tensor>& flats);
  // Everything has arrived (on a GPU: when the current stream goes on).
  void finish();

 private:
  struct Message {
    c10::intrusive_ptr<c10d::Work> work;
    at::Tensor flat;  // (numel) what travels; with `tensors`, to be copied into them
    std::vector<at::Tensor> tensors;
  };
  void limit(size_t rounds);
  void take(const Message& message);
  void start_in_pieces(const std::vector<at::Tensor>& tensors, const std::vector<int>& owners);

  const comm::Group& group_;
  std::vector<std::vector<Message>> rounds_;  // on their way
};

}  // namespace flashstep::parallel
