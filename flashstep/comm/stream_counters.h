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
#include <vector>

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
        batch_(driver_function<decltype(batch_)>("cuStreamBatchMemOp")) {
    require(3 * world_size_ < kMostOperations, "[comm] expected fewer than ", kMostOperations / 3,
            " ranks on a machine, got ", world_size_);
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
    Operations operations;
    for (int other = 0; other < world_size_; ++other) {
      if (other != rank_) operations.push_back(write(address(other, rank_), number));
    }
    for (int other = 0; other < world_size_; ++other) {
      if (other != rank_) operations.push_back(wait(address(rank_, other), number));
    }
    meet(std::move(operations), stream);
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
  static constexpr int kMostOperations = 256;               // of a batch
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
  using Operations = std::vector<CUstreamBatchMemOpParams>;
  // After all that the stream has written so far.
  static CUstreamBatchMemOpParams write(CUdeviceptr address, uint32_t value) {
    CUstreamBatchMemOpParams operation = {};
    operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operation.writeValue.address = address;
    operation.writeValue.value = value;
    return operation;
  }
  static CUstreamBatchMemOpParams wait(CUdeviceptr address, uint32_t value, unsigned flags = 0) {
    CUstreamBatchMemOpParams operation = {};
    operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    operation.waitValue.address = address;
    operation.waitValue.value = value;
    operation.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ | flags;
    return operation;
  }
  CUresult submit(Operations& operations, cudaStream_t stream) const {
    return batch_(stream, static_cast<unsigned>(operations.size()), operations.data(), 0);
  }
  // All at once: in a graph each call is a node, which takes microseconds. Last the permit: a
  // number that a released rank has told is not true, which took the permit away before.
  void meet(Operations operations, cudaStream_t stream) const {
    operations.push_back(wait(address(world_size_ + 1, rank_), kMayGoOn, after_wait_));
    const CUresult result = submit(operations, stream);
    if (result == CUDA_SUCCESS) return;
    throw MachineError(str("[comm] waiting for the other ranks failed with CUDA driver error ",
                           static_cast<int>(result)));
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
    Operations operations;
    for (int other = 0; other < world_size_; ++other) {
      if (other != rank_)
        operations.push_back(write(address(flag(phase_, other), rank_), kHasCome));
    }
    for (int other = 0; other < world_size_; ++other) {
      if (other == rank_) continue;
      const CUdeviceptr own = address(flag(phase_, rank_), other);
      operations.push_back(wait(own, kHasCome));
      operations.push_back(write(own, kHasNotCome));
    }
    meet(std::move(operations), stream);
    phase_ = 1 - phase_;
  }
  // A graph that nobody replays.
  bool try_to_capture() {
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    bool works = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    const CUdeviceptr own = address(flag(0, rank_), rank_);
    Operations operations = {write(own, kHasCome), wait(own, kHasCome, after_wait_)};
    works = works && submit(operations, stream) == CUDA_SUCCESS;
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
  CUresult (*batch_)(CUstream, unsigned int, CUstreamBatchMemOpParams*, unsigned int);
  ptrdiff_t distance_ = 0;
  unsigned after_wait_ = 0;  // flags
  std::atomic<uint32_t> barriers_ = 0;
  bool can_be_captured_ = false;
  unsigned long long last_graph_ = 0;  // that was captured
  int phase_ = 0;                      // whose flags its next barrier has
  std::atomic<bool> was_captured_ = false;
};

}  // namespace flashstep
