// All-reduce between GPUs of one machine, where tensors lie, by copy engines: every rank sends
// every other one the part that it sums up, and gets the means of the rest. NCCL's kernels hold
// multiprocessors for as long as the links take, which matrix products beside them feel; here only
// the sums want some, for a tenth of that time (docs/parallel.md, "Peer copies").
//
// A mean's bits do not depend on where in a list its tensor stands: ranks are summed in their
// order, in float32 (float64 of float64), and their mean is rounded to the tensor's dtype.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/group.h"

namespace flashstep {

class PeerMean {
 public:
  virtual ~PeerMean() = default;
  // Whether it takes these: dense floating-point tensors on its device. While a CUDA graph is
  // captured, only after a first mean outside and where PeerCopies::can_be_captured(); what is said
  // of graphs at PeerCopies::stream_barrier() then holds for this.
  virtual bool takes(const std::vector<at::Tensor>& tensors) const = 0;
  // Overwrites each with the mean over the ranks. Goes to the current stream, always the same one.
  // All ranks call it, with tensors of the same sizes and dtypes. With `kept_at`, means that come
  // from other ranks stay where they arrive, from this byte of the kept memory on: what is returned
  // lies there in place of the tensor that was given, whose values are then of no use. A tensor
  // that is cut, between ranks or rounds, is overwritten as without.
  virtual std::vector<at::Tensor> mean(const std::vector<at::Tensor>& tensors,
                                       std::optional<size_t> kept_at = std::nullopt) = 0;

  // The norm of all means since begin_norm(), if they were those of so many elements and took at
  // most 1,024 rounds (of up to W kMostPeerMeanShare; a mean() takes one at least), else undefined.
  // () float32, the same bits on all ranks. It costs no pass over the means: their squares are
  // summed up with them.
  virtual void begin_norm() = 0;
  virtual at::Tensor norm(int64_t numel) const = 0;

  // Takes memory for means that stay, once. False, on all ranks, where one of them has no room for
  // it beside the most that its tensors have taken so far. All ranks call it, outside of graphs.
  virtual bool keep(size_t bytes) = 0;
  // What a mean of tensors of so many bytes each wants of it.
  virtual size_t kept_bytes(const std::vector<size_t>& tensors) const = 0;
  // Whether `tensor`, which has memory, lies there.
  virtual bool is_kept(const at::Tensor& tensor) const = 0;
};

// Null, on all ranks, where there are no copies from GPU to GPU (make_peer_copies). `bytes`: about
// as much as is given at a time; of more, W kMostPeerMeanShare travel at a time. Takes
// 2.5 (W - 1) / W times that of the GPU's memory. All ranks call it. The group must outlive it.
std::unique_ptr<PeerMean> make_peer_mean(const Group& group, at::Device device, size_t bytes);

// Bytes of a round that one rank sums up: fewer, larger rounds wait less for the slowest rank.
inline constexpr size_t kMostPeerMeanShare = size_t{64} << 20;
// Of a GPU's memory, that stays free beside tensors and means that stay.
inline constexpr double kFreeBesideKeptMeans = 0.05;

// The mean over the ranks of what this one holds and the others have sent it.
struct MeanOfReceived {
  at::Tensor own;   // (n), dense, floating-point
  at::Tensor mean;  // (n), dense: gets it; of own's dtype, or float32 beside a 16-bit one
  size_t place;     // of the others' elements, in each row of `received`; a multiple of 16
};
// received (W - 1, bytes): a row for each rank but `rank`, this one, in their order (row_of_rank).
// Summed in the order of the ranks, in float32 (float64 of float64). On the current stream of a
// GPU, where there are copies between GPUs.
inline int row_of_rank(int rank, int receiver) { return rank - (rank > receiver ? 1 : 0); }
void take_means(const std::vector<MeanOfReceived>& tensors, const at::Tensor& received, int rank);

}  // namespace flashstep
