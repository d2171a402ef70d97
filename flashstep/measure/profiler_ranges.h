// The library's ranges (profiling.h) for profilers: NVTX for NVIDIA's tools (nsys, ncu), user
// annotations for LibTorch's.
#pragma once

#include <cstdint>
#include <optional>

#include "flashstep/profiling.h"

namespace flashstep::measure {

// Makes each range it hears of an annotation of LibTorch's profiler, and one of NVTX where LibTorch
// has CUDA. Lives as long as the process: a range may end after the last ProfilerRanges.
RangeListener& profiler_listener();

// The name of the annotation that marks where a range has ended.
inline constexpr const char* kRangeEnd = "end of range";

// While one lives, every ScopedRange is an NVTX range where LibTorch has CUDA (calls into NVTX
// return at once unless a tool listens), and a RecordFunction of user scope. The latter carries
// autograd's sequence number, as does a mark at its end (kRangeEnd), by which trace_attribution.h
// finds the range that a node of the backward pass belongs to. For NVTX these nodes are ranges by
// their own names, too. Ranges that are open when it ends may end after it; the listener is the
// process's.
class ProfilerRanges {
 public:
  ProfilerRanges();
  ~ProfilerRanges();
  ProfilerRanges(const ProfilerRanges&) = delete;
  ProfilerRanges& operator=(const ProfilerRanges&) = delete;

 private:
  std::optional<uint64_t> node_callback_;
};

}  // namespace flashstep::measure
