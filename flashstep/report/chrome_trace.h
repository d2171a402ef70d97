// Traces in Chrome's format ("trace event format"), as LibTorch's profiler writes them, from C++
// or Python. Torch-free.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "flashstep/base/progress.h"
#include "flashstep/report/trace_events.h"

namespace flashstep::report {

// Operators, ranges, launches, kernels and copies of the file; what else it holds is skipped. Read
// in one pass over the mapped file, about 90 bytes of memory an event: 1 GB takes seconds.
// UserError with the place for what is no such JSON, ends early, or holds none of these events.
TraceEvents read_chrome_trace(const std::filesystem::path& path,
                              const ProgressFunction& progress = {});

// The same, of text in memory; `source` names it in errors.
TraceEvents parse_chrome_trace(std::string_view json, const std::string& source);

}  // namespace flashstep::report
