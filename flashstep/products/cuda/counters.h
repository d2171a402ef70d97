// Counters of cuBLASLt's products in a CUDA graph.
//
// Many of its kernels take their tiles by a counter of 4 bytes, which a product zeroes right before
// its kernel: a node of the graph between two kernels, 1.6 us on an H200. Here each product that is
// recorded gets a counter of its own, and one node at the graph's start zeroes them all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

namespace flashstep::products_cuda {

class RecordedCounters {
 public:
  static constexpr size_t kBytes = size_t{1} << 20;  // of 4,096 counters

  // For what `stream` is recording, and the streams that follow it; `memory` of kBytes and the
  // object are to live as long as the graph.
  RecordedCounters(void* memory, cudaStream_t stream);
  ~RecordedCounters();
  RecordedCounters(const RecordedCounters&) = delete;
  RecordedCounters& operator=(const RecordedCounters&) = delete;

  // A workspace of `bytes` for a product on `stream`. Null where no RecordedCounters are for what
  // is recorded there, for more bytes than a counter has, and when all are taken: then the product
  // brings its own.
  static void* take(size_t bytes, cudaStream_t stream);

  // Before `graph`, which was recorded meanwhile, is made replayable.
  cudaError_t zero_at_start(cudaGraph_t graph) const;

 private:
  uint8_t* const memory_;
  const unsigned long long recording_;  // CUDA's number of it
  size_t taken_ = 0;                    // bytes
};

}  // namespace flashstep::products_cuda
