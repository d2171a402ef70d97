// Meetings of streams on the GPUs of one machine, by counters in memory that all ranks share. Only
// in builds with CUDA.
#pragma once

#include <atomic>
#include <cstdint>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <memory>
#include <utility>

#include <c10/core/Device.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "flashstep/base/error.h"
#include "flashstep/base/text.h"
#include "flashstep/comm/shared_counters.h"

namespace flashstep::comm {

class StreamCounters {
 public:
  // Of SharedCounters: what each rank waits for, who has ended, and who may go on.
  static int kinds(int world_size) { return world_size + 2; }

  // Throws where the driver or the machine cannot. No rank meets before all ranks have theirs.
  StreamCounters(std::unique_ptr<SharedCounters> counters, int rank, int world_size,
                 at::Device device)
      : counters_(std::move(counters)),
        rank_(rank),
        world_size_(world_size),
        device_(device),
        write_(driver_function<decltype(write_)>("cuStreamWriteValue32")),
        wait_(driver_function<decltype(wait_)>("cuStreamWaitValue32")) {
    const c10::cuda::CUDAGuard guard(device_);
    int flushes = 0;
    C10_CUDA_CHECK(
        cudaDeviceGetAttribute(&flushes, cudaDevAttrCanFlushRemoteWrites, device_.index()));
    // What the others have written here before their numbers, on a way of its own, is seen too.
    after_wait_ = flushes != 0 ? CU_STREAM_WAIT_VALUE_FLUSH : 0;
    C10_CUDA_CHECK(
        cudaHostRegister(counters_->memory(), counters_->bytes(), cudaHostRegisterMapped));
    void* mapped = nullptr;
    const cudaError_t error = cudaHostGetDevicePointer(&mapped, counters_->memory(), 0);
    if (error != cudaSuccess) static_cast<void>(cudaHostUnregister(counters_->memory()));
    C10_CUDA_CHECK(error);
    distance_ = static_cast<char*>(mapped) - static_cast<char*>(counters_->memory());
    permit(rank_) = kMayGoOn;
  }
  ~StreamCounters() {
    try {
      const c10::cuda::CUDAGuard guard(device_);
      C10_CUDA_CHECK_WARN(cudaHostUnregister(counters_->memory()));
    } catch (const c10::Error&) {  // of a device that has failed, which is told elsewhere
    }
  }
  StreamCounters(const StreamCounters&) = delete;
  StreamCounters& operator=(const StreamCounters&) = delete;

  // What `stream` gets from now on starts when every rank's has come to its meeting of this number.
  void meet(cudaStream_t stream) {
    const uint32_t number = ++meetings_;
    for (int other = 0; other < world_size_; ++other) {
      if (other == rank_) continue;
      // After all that the stream has written so far.
      check(write_(stream, address(other, rank_), number, CU_STREAM_WRITE_VALUE_DEFAULT),
            "telling the other ranks");
    }
    for (int other = 0; other < world_size_; ++other) {
      if (other == rank_) continue;
      check(wait_(stream, address(rank_, other), number, CU_STREAM_WAIT_VALUE_GEQ),
            "waiting for the other ranks");
    }
    // A number that a released rank has told is not true: it took the permit away before.
    check(wait_(stream, address(world_size_ + 1, rank_), kMayGoOn,
                CU_STREAM_WAIT_VALUE_GEQ | after_wait_),
          "waiting for a permit");
  }
  bool has_met() const { return meetings_ > 0; }

  // From any thread: ends this rank's waits, those that come later too, until another rank's stream
  // writes its number over it; then it wants to be called again. No other rank's waits end, though
  // this one's stream now tells them that it has come: they hold until they are released too.
  void release() const {
    for (int other = 0; other < world_size_; ++other) {
      uint32_t found = kMayGoOn;
      if (other != rank_) permit(other).compare_exchange_strong(found, kHolds);
    }
    permit(rank_) = kIsReleased;
    for (int other = 0; other < world_size_; ++other) {
      if (other != rank_) counters_->at(rank_, other) = meetings_ + kFarAhead;
    }
  }

  // Nothing of other ranks is mapped here any more.
  void set_closed() const { counters_->at(world_size_, rank_) = 1; }
  bool are_closed() const {
    for (int rank = 0; rank < world_size_; ++rank) {
      if (counters_->at(world_size_, rank) == 0) return false;
    }
    return true;
  }

 private:
  // Waits compare in a circle of 2^32 numbers.
  static constexpr uint32_t kFarAhead = 1U << 30;
  // A rank's permit. Whoever is released is not held any more.
  static constexpr uint32_t kHolds = 0, kMayGoOn = 1, kIsReleased = 2;

  // Of libcuda, which a machine without a GPU has not.
  template <typename Function>
  static Function driver_function(const char* name) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult result;
    C10_CUDA_CHECK(
        cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &result));
    require(result == cudaDriverEntryPointSuccess && address != nullptr,
            "[comm] expected a driver that has ", name);
    return reinterpret_cast<Function>(address);
  }
  static void check(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return;
    throw MachineError(
        str("[comm] ", what, " failed with CUDA driver error ", static_cast<int>(result)));
  }
  std::atomic<uint32_t>& permit(int rank) const { return counters_->at(world_size_ + 1, rank); }
  CUdeviceptr address(int waiting, int awaited) const {
    auto* const counter = reinterpret_cast<char*>(&counters_->at(waiting, awaited));
    return reinterpret_cast<CUdeviceptr>(counter + distance_);
  }

  std::unique_ptr<SharedCounters> counters_;
  const int rank_, world_size_;
  const at::Device device_;
  CUresult (*write_)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
  CUresult (*wait_)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
  ptrdiff_t distance_ = 0;
  unsigned after_wait_ = 0;  // flags
  std::atomic<uint32_t> meetings_ = 0;
};

}  // namespace flashstep::comm
