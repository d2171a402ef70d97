// Runs a piece of work under LibTorch's profiler (Kineto).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "flashstep/report/trace_events.h"

namespace torch::autograd::profiler {
struct ProfilerResult;
}  // namespace torch::autograd::profiler

namespace flashstep::report {

// What the profiler saw of `work`: operators and ranges of the host, kernels and copies of GPUs.
enum class Seen { kHost, kGpu, kBoth };
std::unique_ptr<torch::autograd::profiler::ProfilerResult> profiled(
    Seen seen, bool shapes, const std::function<void()>& work);

// What `work` did, which must wait for the device before it returns: operators and ranges (those
// that ProfilerRanges hears of), and on a GPU launches, kernels and copies. Recording an operator
// costs the host about a microsecond, its shapes another. With a `file` the same as a chrome trace
// (Perfetto and chrome://tracing open it; read_chrome_trace() too); MachineError when it cannot be
// written.
TraceEvents record(at::Device device, const std::function<void()>& work,
                   const std::string& file = "");

}  // namespace flashstep::report
