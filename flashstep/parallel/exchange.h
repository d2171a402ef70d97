// Sending tensors from their owners to all other ranks, all owners at once, in rounds that overlap
// with whatever is done between start() and finish().
//
// Between GPUs of one machine every owner writes into the others' tensors (comm/peer_copies.h).
// Elsewhere, and where that cannot be, collectives carry them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "flashstep/comm/peer_copies.h"
#include "flashstep/group.h"
#include "flashstep/parallel/side_stream.h"

namespace flashstep {

class Exchange {
 public:
  // `peer_copies` false: by collectives, everywhere.
  explicit Exchange(const Group& group, bool peer_copies = true)
      : group_(group), may_copy_(peer_copies) {}

  // Of an update. What an earlier one, that an exception ended at the same part on all ranks, has
  // left is forgotten; where ranks ended at different parts, none can go on.
  void begin();
  // tensors[i], dense in memory, is overwritten on every rank with rank owners[i]'s; its version
  // grows on the others. NCCL takes the
  // round in one launch, from where the tensors lie; Gloo in flat messages, one per owner, device
  // and dtype. All ranks call it, with tensors of the same shapes; a tensor is kept from its first
  // round on.
  void start(const std::vector<at::Tensor>& tensors, const std::vector<int>& owners);
  // The same, of equal parts: part r of each flat (numel), a multiple of the world size, comes from
  // rank r (all-gather). NCCL writes into the flats; c10d's Gloo gathers into a copy of the whole
  // flat first, so that of flats, too, two rounds of copies lie in memory. Versions are the
  // caller's: what lies in a flat is not known here.
  void start_gather(const std::vector<at::Tensor>& flats);
  // Everything has arrived (on a GPU: when the current stream goes on).
  void finish();
  // What the last round went by: "copies", "NCCL", "Gloo"; "" before the first.
  const std::string& transport() const { return transport_; }

 private:
  struct Message {
    c10::intrusive_ptr<c10d::Work> work;
    at::Tensor flat;  // (numel) what travels; with `tensors`, to be copied into them
    std::vector<at::Tensor> tensors;
  };
  // Into whose memory others write: the tensor's when it was first sent. Where it has other memory
  // since, what arrives is copied there.
  struct Target {
    size_t number;       // among the copies' tensors
    const void* memory;  // theirs
    at::Tensor tensor;
    bool is_awaited = false;  // in this update, from another rank
  };
  void limit(size_t rounds);
  void take(const Message& message);
  void start_in_pieces(const std::vector<at::Tensor>& tensors, const std::vector<int>& owners);

  void make_copies(at::Device device);
  bool can_copy(const std::vector<at::Tensor>& tensors);
  Target& target(const at::Tensor& tensor) { return targets_.at(tensor.unsafeGetTensorImpl()); }
  template <typename PushTo>
  void copy(PushTo&& push_to);
  void finish_copies();

  const Group& group_;
  std::vector<std::vector<Message>> rounds_;  // in flight
  bool may_copy_;                             // until it is known that they cannot
  bool asked_ = false;                        // the other ranks
  std::string transport_;
  std::unique_ptr<PeerCopies> copies_;
  std::optional<SideStream> copy_stream_;
  bool is_copying_ = false;  // since the last finish()
  size_t shared_ = 0;        // tensors
  std::unordered_map<void*, Target> targets_;
};

}  // namespace flashstep
