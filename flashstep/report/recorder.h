// Runs a piece of work under LibTorch's profiler (Kineto).
#pragma once

#include <functional>
#include <string>

#include <c10/core/Device.h>

#include "flashstep/report/trace_events.h"

namespace flashstep::report {

// What `work` did, which must wait for the device before it returns: operators and ranges (those
// that ProfilerRanges hears of), and on a GPU launches, kernels and copies. Recording an operator
// costs the host about a microsecond, its shapes another. With a `file` the same as a chrome trace
// (Perfetto and chrome://tracing open it; read_chrome_trace() too); MachineError when it cannot be
// written.
TraceEvents record(at::Device device, const std::function<void()>& work,
                   const std::string& file = "");

}  // namespace flashstep::report
