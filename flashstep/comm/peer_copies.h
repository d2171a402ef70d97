// Copies between the GPUs of one machine, over NVLink or PCIe: every rank writes into the other
// ranks' tensors, by its GPU's copy engines. They need no multiprocessor, where NCCL's kernels wait
// for some of their own, and are faster beside a kernel that is bound by memory (docs/parallel.md,
// "While it updates, it sends").
//
//   auto copies = comm::make_peer_copies(group, device);
//   copies->share(flats);
//   ...                              // every step, on one stream:
//   copies->open();                  // what it held so far was the last that read the old values
//   copies->push(0, own, begin);     // flats[0], elements from `begin`, of every other rank
//   copies->close();                 // everybody's pushes have arrived
//
// The ranks' streams wait for one another, their hosts do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/comm/group.h"

namespace flashstep::comm {

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

  // The following go to the current stream. All ranks call open() and close() equally often.

  // Others may write here as soon as this stream has come to this point.
  virtual void open() = 0;
  // Writes `from` (n), dense, into elements [begin, begin + n) of every other rank's tensor
  // `number`, between open() and close(). No two ranks write to one place between these.
  virtual void push(size_t number, const at::Tensor& from, int64_t begin) = 0;
  // What comes after it starts when all pushes of all ranks have arrived.
  virtual void close() = 0;
};

// Null, on all ranks, where there are no such copies: ranks on several machines, tensors that do not
// travel by NCCL, a group that others made (nobody would end what waits for a lost rank), one rank
// alone. All ranks call it. The group must outlive it.
std::unique_ptr<PeerCopies> make_peer_copies(const Group& group, at::Device device);

// Whether the current stream of `device` is being captured into a CUDA graph, which open() and
// close() cannot be: their numbers are those of this one time.
bool is_being_captured(at::Device device);

}  // namespace flashstep::comm
