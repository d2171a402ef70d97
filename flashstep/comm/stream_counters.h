// Meetings of streams on the GPUs of one machine, by counters in memory that all ranks share. Only
// in builds with CUDA.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <memory>
#include <optional>
#include <utility>

#include <c10/core/Device.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "flashstep/base/text.h"
#include "flashstep/comm/shared_counters.h"
#include "flashstep/error.h"

namespace flashstep {

class StreamCounters {
 public:
  // Of SharedCounters: what each rank waits for, who has ended, who may go on, and two flags for
  // what each rank waits for in graphs.
  static int kinds(int world_size) { return 3 * world_size + 2; }

  // Throws where the driver or the machine cannot. No rank passes a barrier before all ranks have
  // theirs.
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
    can_be_captured_ = try_to_capture();
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

  // What `stream` gets from now on starts when every rank's has come to its barrier of this number.
  // One that is captured has no number but its place in the graph, which must have an even number
  // of them: ranks replay the same graphs in the same order.
  void barrier(cudaStream_t stream) {
    if (const auto graph = graph_of(stream)) {
      meet_in_graph(stream, *graph);
      return;
    }
    const uint32_t number = ++barriers_;
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
    wait_for_permit(stream);
  }
  bool has_passed_barrier() const { return barriers_ > 0; }
  // From any thread: the number that this rank's host has given the last barrier, and the rank that
  // is behind all others, with the number that its stream has come to. Without those in graphs.
  uint32_t launched() const { return barriers_; }
  std::pair<int, uint32_t> slowest() const {
    std::pair<int, uint32_t> slowest = {rank_, barriers_};
    for (int other = 0; other < world_size_; ++other) {
      if (other == rank_) continue;
      const uint32_t reached = counters_->at(rank_, other);
      if (static_cast<int32_t>(reached - slowest.second) < 0) slowest = {other, reached};
    }
    return slowest;
  }
  // Whether the driver takes barriers into graphs.
  bool can_be_captured() const { return can_be_captured_; }

  // From any thread: ends this rank's waits, those that come later too, until another rank's stream
  // writes its number over it; then it wants to be called again. Meetings in graphs it ends while
  // it runs, which is for some milliseconds where there are any. No other rank's waits end, though
  // this one's stream now tells them that it has come: they hold until they are released too.
  void release() const {
    for (int other = 0; other < world_size_; ++other) {
      uint32_t found = kMayGoOn;
      if (other != rank_) permit(other).compare_exchange_strong(found, kHolds);
    }
    permit(rank_) = kIsReleased;
    for (int other = 0; other < world_size_; ++other) {
      if (other == rank_) continue;
      counters_->at(rank_, other) = barriers_ + kFarAhead;
    }
    raise_own_flags();
    if (!was_captured_) return;
    // Replays that were launched already may hold thousands of barriers.
    const auto end = std::chrono::steady_clock::now() + kRelease;
    while (std::chrono::steady_clock::now() < end) raise_own_flags();
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
  static constexpr std::chrono::milliseconds kRelease{5};
  static constexpr uint32_t kHasNotCome = 0, kHasCome = 1;  // flags

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
  // A number that a released rank has told is not true: it took the permit away before.
  void wait_for_permit(cudaStream_t stream) const {
    check(wait_(stream, address(world_size_ + 1, rank_), kMayGoOn,
                CU_STREAM_WAIT_VALUE_GEQ | after_wait_),
          "waiting for a permit");
  }

  static std::optional<unsigned long long> graph_of(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long graph = 0;
    C10_CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &graph));
    if (status == cudaStreamCaptureStatusInvalidated)
      throw MachineError("[comm] expected a capture that has not failed");
    if (status != cudaStreamCaptureStatusActive) return std::nullopt;
    return graph;
  }
  void raise_own_flags() const {
    for (int other = 0; other < world_size_; ++other) {
      if (other == rank_) continue;
      for (const int phase : {0, 1}) counters_->at(flag(phase, rank_), other) = kHasCome;
    }
  }
  int flag(int phase, int waiting) const { return world_size_ + 2 + phase * world_size_ + waiting; }
  // A replay can count nothing: each rank raises a flag for the others, and who has seen it takes
  // it down. The next barrier has other flags, and when it is over these are down everywhere.
  void meet_in_graph(cudaStream_t stream, unsigned long long graph) {
    if (graph != last_graph_) phase_ = 0;  // also after one whose capture broke off
    last_graph_ = graph;
    was_captured_ = true;
    for (int other = 0; other < world_size_; ++other) {
      if (other == rank_) continue;
      check(write_(stream, address(flag(phase_, other), rank_), kHasCome,
                   CU_STREAM_WRITE_VALUE_DEFAULT),
            "telling the other ranks");
    }
    for (int other = 0; other < world_size_; ++other) {
      if (other == rank_) continue;
      const CUdeviceptr own = address(flag(phase_, rank_), other);
      check(wait_(stream, own, kHasCome, CU_STREAM_WAIT_VALUE_GEQ), "waiting for the other ranks");
      check(write_(stream, own, kHasNotCome, CU_STREAM_WRITE_VALUE_DEFAULT),
            "taking down the other ranks' flags");
    }
    wait_for_permit(stream);
    phase_ = 1 - phase_;
  }
  // A graph that nobody replays.
  bool try_to_capture() {
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    bool works = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    const CUdeviceptr own = address(flag(0, rank_), rank_);
    works = works && write_(stream, own, kHasCome, CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS &&
            wait_(stream, own, kHasCome, CU_STREAM_WAIT_VALUE_GEQ | after_wait_) == CUDA_SUCCESS;
    works = cudaStreamEndCapture(stream, &graph) == cudaSuccess && works;
    cudaGraphExec_t replayable = nullptr;
    works = works && cudaGraphInstantiate(&replayable, graph, 0) == cudaSuccess;
    if (replayable != nullptr) static_cast<void>(cudaGraphExecDestroy(replayable));
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    static_cast<void>(cudaStreamDestroy(stream));
    static_cast<void>(cudaGetLastError());  // of what does not work
    return works;
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
  std::atomic<uint32_t> barriers_ = 0;
  bool can_be_captured_ = false;
  unsigned long long last_graph_ = 0;  // that was captured
  int phase_ = 0;                      // whose flags its next barrier has
  std::atomic<bool> was_captured_ = false;
};

}  // namespace flashstep
