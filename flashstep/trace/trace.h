// What ran when during a piece of work, as LibTorch's profiler (Kineto) saw it.
//
// On a GPU: kernels and copies by their own clock; NCCL's kernels are the communication (they run
// from the moment a rank is ready until the slowest one has been heard), what else runs on the
// stream that computes is compute, and what runs on further streams is copies. That stream takes a
// microsecond or two from one kernel to the next, whatever runs beside it: gaps below kLaunchGap
// count as compute. On a CPU: operators are compute, and a collective of Gloo runs from its start
// until its result is there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "flashstep/measure/lane_chart.h"
#include "flashstep/measure/spans.h"
#include "flashstep/trace/trace_events.h"

namespace flashstep::tools {

inline constexpr double kLaunchGap = 10e-6;  // seconds; waiting for a message takes longer

struct Trace {
  // Seconds from the first of them, in order. Communication has a span for each collective (each
  // kernel of NCCL's); the others' neither overlap nor touch.
  std::vector<measure::Span> compute, copies, communication;
  std::string failure;  // why there is nothing; empty when there is

  double compute_seconds() const;
  double communication_seconds() const;  // at least one collective runs
  double exposed_seconds() const;        // of it, nothing computes
  double hidden_share() const;           // 1 - exposed / communication; NaN without communication
  double busy_seconds() const;           // anything runs
  double seconds() const;                // from the first span to the end of the last
};

// Its times, on whatever clock, from the first of them on, in order.
void count_from_first(Trace& trace);

// What ran in the last `seconds` of a trace that ends with computing, counted from their beginning;
// of collectives those that began in them.
Trace last_part(const Trace& trace, double seconds);

// Runs `work`, which must wait for the device before it returns.
Trace trace(c10::Device device, const std::function<void()>& work);

// Two or three lanes with their times, for a picture.
measure::LaneGroup lanes_of(const Trace& trace, const std::string& title);

// What `work` did, which must wait for the device before it returns: operators and ranges (those
// that ProfilerRanges hears of), and on a GPU launches, kernels and copies. Recording an operator
// costs the host about a microsecond, its shapes another. With a `file` the same as a chrome trace
// (Perfetto and chrome://tracing open it; read_chrome_trace() too); MachineError when it cannot be
// written.
TraceEvents record(at::Device device, const std::function<void()>& work,
                   const std::string& file = "");

}  // namespace flashstep::tools
