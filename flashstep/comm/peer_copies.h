// Copies between the GPUs of one machine, over NVLink or PCIe: every rank writes into the other
// ranks' tensors, by its GPU's copy engines. They need no multiprocessor, where NCCL's kernels wait
// for some of their own, and are faster beside a kernel that is bound by memory (docs/parallel.md,
// "Sharded optimizers").
//
//   auto copies = make_peer_copies(group, device);
//   copies->share(flats);
//   ...                              // every step, on one stream:
//   copies->stream_barrier();  // nobody reads any more what is about to be overwritten
//   copies->push_to_all([&](int to) { copies->push(to, 0, own, begin); });
//   copies->stream_barrier();  // everybody's pushes have arrived
//
// The ranks' streams wait for one another, their hosts do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/group.h"

namespace flashstep {

class PeerCopies {
 public:
  virtual ~PeerCopies() = default;

  // From now on the other ranks may write into the memory that `tensors`, dense and on the device,
  // have now; it is kept until this is gone. They get the next numbers, from 0. All ranks call it,
  // with the same number of tensors of the same sizes; false, on all of them, if some rank's memory
  // cannot be reached, and then none of these got a number.
  virtual bool share(const std::vector<at::Tensor>& tensors) = 0;
  // The memory of tensor `number` when it was shared, as a flat tensor.
  virtual const at::Tensor& shared(size_t number) const = 0;

  // What the current stream holds by now is done, on every rank, before what any rank's stream gets
  // after it begins. All ranks call it equally often, each on one stream. A CUDA graph may hold it,
  // where can_be_captured() and an even number of times, if all ranks replay the same graphs in the
  // same order, none while this is used elsewhere and none when it is gone.
  virtual void stream_barrier() = 0;
  virtual bool can_be_captured() const = 0;  // the same on all ranks
  // Writes `from`, dense, into rank `to`'s tensor `number`, from its element `begin` on (of from's
  // dtype), between two barriers in which nobody else reads or writes there. Goes to the current
  // stream.
  virtual void push(int to, size_t number, const at::Tensor& from, int64_t begin) = 0;
  // The same of bytes.
  virtual void push_bytes(int to, size_t number, size_t begin, const void* from, size_t bytes) = 0;
  // Calls push_to for every other rank, the next one first, so that ranks write to different ones.
  virtual void push_to_all(const std::function<void(int to)>& push_to) = 0;
};

// Null, on all ranks, where there are no such copies: ranks on several machines, tensors that do
// not travel by NCCL, a group that others made and gave no limit (nobody would end what waits for a
// lost rank), one rank alone. All ranks call it. The group must outlive it.
std::unique_ptr<PeerCopies> make_peer_copies(const Group& group, at::Device device);

// Whether the current stream of `device` is being captured into a CUDA graph.
bool is_being_captured(at::Device device);

}  // namespace flashstep
