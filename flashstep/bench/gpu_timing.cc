#include "flashstep/bench/gpu_timing.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

namespace flashstep::tools {
namespace {

// Elapsed times of `samples` runs of `work`, which enqueues `calls` calls.
std::vector<double> between_events(int64_t samples, int64_t calls,
                                   const std::function<void(int64_t sample)>& work) {
  // One event between two runs ends the one and begins the other.
  std::vector<at::cuda::CUDAEvent> events;
  for (int64_t i = 0; i <= samples; ++i) events.emplace_back(cudaEventDefault);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  events[0].record(stream);
  for (int64_t i = 0; i < samples; ++i) {
    work(i);
    events[static_cast<size_t>(i + 1)].record(stream);
  }
  events.back().synchronize();
  std::vector<double> seconds;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const double milliseconds = events[i].elapsed_time(events[i + 1]);
    seconds.push_back(milliseconds * 1e-3 / static_cast<double>(calls));
  }
  return seconds;
}

}  // namespace

std::vector<double> gpu_seconds(const NumberedCall& call, int64_t first, int64_t samples,
                                int64_t calls) {
  return between_events(samples, calls, [&](int64_t sample) {
    for (int64_t i = 0; i < calls; ++i) call(first + sample * calls + i);
  });
}

GpuGraph::GpuGraph(const NumberedCall& call, int64_t calls)
    : work_([&] {
        for (int64_t i = 0; i < calls; ++i) call(i);
      }),
      calls_(calls) {}

std::vector<double> GpuGraph::seconds(int64_t samples) {
  work_.replay();
  return between_events(samples, calls_, [&](int64_t) { work_.replay(); });
}

uint64_t gpu_l2_bytes() {
  return static_cast<uint64_t>(at::cuda::getCurrentDeviceProperties()->l2CacheSize);
}

}  // namespace flashstep::tools
