// A recorded run as plain data: what ran when on the host's threads and on the device's streams.
// trace.h makes one from LibTorch's profiler, read_chrome_trace() from a file; trace_attribution.h
// reads it. Torch-free.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "flashstep/base/progress.h"
#include "flashstep/measure/spans.h"

namespace flashstep::tools {

// Texts by number: a trace has millions of events and some hundred names.
class Names {
 public:
  Names() = default;
  Names(Names&&) = default;  // no copies: the table below refers to the texts
  Names& operator=(Names&&) = default;

  uint32_t index(std::string_view name);  // the same for the same text
  const std::string& operator[](uint32_t index) const { return texts_[index]; }
  uint32_t size() const { return static_cast<uint32_t>(texts_.size()); }

 private:
  std::deque<std::string> texts_;  // whose addresses stay
  std::unordered_map<std::string_view, uint32_t> indices_;
};

enum class EventKind : uint8_t {
  kOperator,  // host: LibTorch's operators and nodes of the backward pass
  kRange,     // host: named by the program
  kLaunch,    // host: calls into the CUDA runtime or driver
  kKernel,    // device
  kCopy,      // device: copies and fills
};
// By what Kineto calls it: "cpu_op", "kernel"; nothing for what is no work of the program's.
std::optional<EventKind> kind_of_category(std::string_view category);

inline constexpr uint32_t kNoThread = UINT32_MAX;

struct TraceEvent {
  int64_t begin_ns = 0, end_ns = 0;  // on one clock; begin_ns <= end_ns
  uint64_t id = 0;  // operators and ranges: their own; others: the operator's that launched
  uint64_t correlation =
      0;                  // the same for a launch and the kernel or copy that it started; 0: none
  int64_t sequence = -1;  // operators and ranges: autograd's sequence number when they began
  double flops = 0;       // operators: of matrix products and attention, where shapes are known
  double bytes = 0;       // operators: that must be read and written at least
  uint32_t name = 0;
  uint32_t lane =
      0;  // host thread or device stream; numbers of threads and of streams may coincide
  uint32_t forward_thread = kNoThread;  // nodes of the backward pass: the thread that made them
  EventKind kind = EventKind::kOperator;
};

struct TraceEvents {
  std::vector<TraceEvent> events;  // in any order
  Names names;
};

bool is_device_event(const TraceEvent& event);
measure::Span span_of(const TraceEvent& event);

// Traces in Chrome's format ("trace event format"), as LibTorch's profiler writes them, from C++
// or Python. Torch-free.

// Operators, ranges, launches, kernels and copies of the file; what else it holds is skipped. Read
// in one pass over the mapped file, about 90 bytes of memory an event: 1 GB takes seconds.
// UserError with the place for what is no such JSON, ends early, or holds none of these events.
TraceEvents read_chrome_trace(const std::filesystem::path& path,
                              const ProgressFunction& progress = {});

// The same, of text in memory; `source` names it in errors.
TraceEvents parse_chrome_trace(std::string_view json, const std::string& source);

}  // namespace flashstep::tools
