// Sources: flashstep/trace/chrome_trace.cc flashstep/trace/json_scanner.cc
// Sources: flashstep/trace/trace_attribution.cc
// Sources: flashstep/trace/operator_work.cc flashstep/trace/work_class*.cc
// Sources: flashstep/profile/profile_sums.cc
// Sources: flashstep/attention/cost.cc flashstep/measure/spans.cc
// Any bytes as a profiler's trace: refused with UserError, or events that end after they begin, and
// whose time `flashstep profile --trace` can put into classes.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "flashstep/error.h"
#include "flashstep/profile/profile_sums.h"
#include "flashstep/trace/trace_attribution.h"
#include "flashstep/trace/trace_events.h"

using namespace flashstep::tools;  // a test program

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    const TraceEvents trace = parse_chrome_trace(json, "fuzz");
    if (trace.events.empty() || trace.events.size() > size) std::abort();
    for (const TraceEvent& event : trace.events) {
      if (event.begin_ns > event.end_ns || event.name >= trace.names.size()) std::abort();
      if (!(event.flops >= 0) || !(event.bytes >= 0)) std::abort();
    }
    sums_of(trace, attribute(trace));
  } catch (const flashstep::UserError&) {
  }
  return 0;
}
