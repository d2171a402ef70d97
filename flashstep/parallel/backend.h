// Which backend carries tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "flashstep/comm/peer_mean.h"
#include "flashstep/group.h"

namespace flashstep {

// Whether all of them travel through NCCL, which averages by itself and takes tensors where they
// lie. False for no tensors, and for a single process.
bool goes_through_nccl(const std::vector<at::Tensor>& tensors, const Group& group);

// What carries them, for people: "NCCL", "Gloo", another backend's own name, "" for no tensors and
// for a single process. Of several devices: what carries the first one's.
std::string transport_of(const std::vector<at::Tensor>& tensors, const Group& group);
inline constexpr const char* kCopies = "copies";  // from GPU to GPU

// Starts the all-reduce of all of them in one launch; `average` is NCCL's, Gloo only sums. `what`
// is for messages. `peers`, if not null, does it on the current stream, where it can; what comes
// from other ranks then stays where it arrived, and is what `tensors` holds (PeerMean::mean).
c10::intrusive_ptr<c10d::Work> start_reduction(std::vector<at::Tensor>& tensors, bool average,
                                               const Group& group, const std::string& what,
                                               PeerMean* peers = nullptr,
                                               std::optional<size_t> kept_at = std::nullopt);

}  // namespace flashstep
