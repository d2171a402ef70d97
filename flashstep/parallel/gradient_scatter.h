// Gradients that are reduced and divided in one step: of every bucket, rank r gets the mean of part
// r of W equal ones, and no other (reduce-scatter, half of an all-reduce). What a rank does not own
// it forgets: its gradients shrink to 1/W (stage 2 of ZeRO).
//
// NCCL reduces and divides by itself. Gloo's reduce-scatter is an all-reduce of which the rest is
// thrown away; here every rank sends part r to rank r (all-to-all) and sums what it received in the
// order of ranks: (W - 1) / W of the bytes, as it should be, for one more bucket of memory, and the
// bits of a sum do not depend on where in a bucket it stands.
//
// Both take a flat tensor, into which every gradient is copied first. launch_in_place() all-reduces
// gradients where they lie and keeps those of its part: twice the bytes between ranks, and over
// NCCL, in their own dtype, none is copied but those that two ranks share. Between GPUs that are
// fast to reach, memory is the dearer of the two. Its sums are the backend's: over Gloo their bits
// depend, from three ranks on, on where in a bucket a value stands, and are rounded in the dtype
// that travels.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "flashstep/comm/peer_mean.h"
#include "flashstep/group.h"
#include "flashstep/parallel/buckets.h"
#include "flashstep/parallel/side_stream.h"

namespace flashstep {

// Part `rank` of `world_size` equal ones of flat (numel), numel a multiple of world_size.
at::Tensor part_of(const at::Tensor& flat, int rank, int world_size);

// Buckets that travel at a time. An earlier one is taken before a further one is sent, which frees
// its memory: so many buckets of gradients, and not all, lie in memory beside the parts. (On a GPU
// the host does not wait: docs/parallel.md, "Sharded optimizers".)
inline constexpr size_t kBucketsInFlight = 4;

// How a bucket travels.
struct ScatterOptions {
  bool backend_averages = false;  // else the gradients were divided by W before
  std::optional<at::ScalarType> communication_dtype;
  bool widens = false;        // summed, and only then divided by W, in float32, then rounded
  std::string name;           // for messages
  PeerMean* peers = nullptr;  // of gradients in place, where it can
};

class GradientScatter {
 public:
  // The layouts' `parameters` are indices into what the reducer reduces; each numel is a multiple
  // of the world size. The group must outlive it.
  GradientScatter(std::vector<BucketLayout> layouts, const Group& group);

  const std::vector<BucketLayout>& layouts() const { return layouts_; }

  // For the reducer. Takes bucket number `bucket`, full, and starts to send it, from `stream`;
  // has_gradient says which slots hold a gradient. All ranks launch in the same order.
  void launch(size_t bucket, at::Tensor flat, std::vector<bool> has_gradient,
              const ScatterOptions& options, SideStream& stream);
  // The same of gradients where they lie: pieces[slot] is the parameter's whole gradient as a flat
  // tensor, which nobody else uses until it is let go.
  void launch_in_place(size_t bucket, std::vector<at::Tensor> pieces,
                       std::vector<bool> has_gradient, const ScatterOptions& options,
                       SideStream& stream);
  // Some other rank has a gradient for this slot.
  void set_gradient(size_t bucket, size_t slot) { buckets_[bucket].has_gradient[slot] = true; }
  // When it returns (on a GPU: when the current stream goes on), gradient() is of the mean.
  void wait(size_t bucket, SideStream& stream);

  // For the optimizer: elements [begin, end) of slot `slot`, which lie in this rank's part.
  // Undefined without a gradient, and if nothing was reduced since clear().
  at::Tensor gradient(size_t bucket, size_t slot, int64_t begin, int64_t end) const;
  bool has_gradient(size_t bucket, size_t slot) const;  // on some rank, of the mean that lies here
  void clear();
  // Whether means lie here that no update has used. The same on all ranks.
  bool holds_means() const;
  void forget();  // what is in flight, too, when it has ended

 private:
  struct Bucket {
    at::Tensor flat, received;       // what is sent, what came (all-to-all); while it travels
    std::vector<at::Tensor> pieces;  // in place: what travels, by slot
    // This rank's part: (numel / W), or, in place, by slot, what of a gradient lies in it.
    at::Tensor part;
    std::vector<at::Tensor> own;
    at::ScalarType dtype;  // of the gradients
    bool widens = false;
    std::vector<bool> has_gradient;
    c10::intrusive_ptr<c10d::Work> work;
    bool is_captured = false;      // work was started in a capture
    SideStream* stream = nullptr;  // from which it was sent
    std::string name;
    bool is_taken_aside = false;  // by kernels of the side stream
    bool holds_means() const { return part.defined() || !own.empty(); }
  };
  Bucket& begin(size_t bucket, const at::Tensor& gradient, std::vector<bool> has_gradient,
                const ScatterOptions& options, bool in_place, SideStream& stream);
  void take(Bucket& bucket);
  void keep_own(Bucket& bucket);

  const std::vector<BucketLayout> layouts_;
  const Group& group_;
  std::vector<Bucket> buckets_;
};

}  // namespace flashstep
