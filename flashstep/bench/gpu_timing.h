// Time of work on the GPU: calls between events, and calls replayed from a CUDA graph.
// gpu_timing.cc in a CUDA build; no_gpu_timing.cc, which throws, in the others.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "flashstep/train/recorded_work.h"

namespace flashstep::tools {

// Enqueues the call of this number: numbers choose among inputs.
using NumberedCall = std::function<void(int64_t number)>;

// Seconds a call in each of `samples` runs of `calls` calls, between events on this thread's
// stream: what someone sees who calls again and again, be it the kernels or their launching that
// takes longer.
std::vector<double> gpu_seconds(const NumberedCall& call, int64_t first, int64_t samples,
                                int64_t calls);

// Calls recorded once and replayed as one: their kernels' time, without the launching.
class GpuGraph {
 public:
  // Throws what the calls throw when they cannot be captured.
  GpuGraph(const NumberedCall& call, int64_t calls);

  // Seconds a call in each of `samples` replays, after one that is not timed.
  std::vector<double> seconds(int64_t samples);

 private:
  RecordedWork work_;
  int64_t calls_;
};

uint64_t gpu_l2_bytes();

}  // namespace flashstep::tools
