// c10d's backends, each behind a function, so that one file each knows its headers.
#pragma once

#include <chrono>
#include <exception>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "flashstep/detail/environment.h"

namespace flashstep {

// Connects every rank with every other, by TCP at `address` of this machine.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int world_size, const std::string& address,
                                            std::chrono::milliseconds timeout);

// Gloo throws on a thread of its own, which ends the process by SIGABRT, when a message comes that
// is not the one that this rank waits for. From now on the process ends with a sentence and code 1
// then.
void explain_gloo_terminations();

// Whether `work` is a collective (no message) of Gloo: one that can be waited for again.
bool is_gloo_collective(const c10d::Work& work);

// Whether c10d compares each collective between the ranks first (TORCH_DISTRIBUTED_DEBUG=DETAIL).
bool is_compared(const c10d::Backend& backend);

// True if `error` says that the network, a peer or the backend failed, not that the call was wrong.
bool is_network_error(const std::exception& error);

// Whether make_nccl() can be called.
bool has_nccl();

// The name of GPU `device_index`, or of gpu_of_rank() where that is negative: "GPU-5d3f...", which
// no other GPU has. UserError in a build without CUDA.
std::string own_gpu(const Environment& environment, int device_index);

// UserError in a build without CUDA.
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int world_size, std::chrono::milliseconds timeout);

}  // namespace flashstep
