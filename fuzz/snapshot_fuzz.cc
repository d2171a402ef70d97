// Sources: flashstep/measure/pickle_reader.cc flashstep/measure/memory_snapshot_read.cc
// Sources: flashstep/measure/memory_trace.cc
// Any bytes as a memory snapshot: refused with UserError, or a trace whose parts lie where they say
// and of which everything can be asked that `flashstep memory --snapshot` asks.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "flashstep/error.h"
#include "flashstep/measure/memory_snapshot.h"

using namespace flashstep::measure;  // a test program

namespace {

void expect(bool holds) {
  if (!holds) std::abort();
}

void check_indices(const MemoryTrace& trace) {
  for (const Allocation& allocation : trace.allocations) {
    expect(allocation.site < trace.sites.size() && allocation.shape < trace.shapes.size());
    expect(allocation.begin == kNoEvent || allocation.begin < trace.events.size());
    expect(allocation.end == kNoEvent || allocation.end < trace.events.size());
    expect(allocation.bytes >= 0);
  }
  for (const MemoryEvent& event : trace.events) expect(event.allocation < trace.allocations.size());
  for (const MemoryRange& range : trace.ranges) {
    expect(range.events.begin <= range.events.end && range.events.end <= trace.events.size());
  }
  for (const MemorySite& site : trace.sites) {
    for (const uint32_t frame : site.frames) expect(frame < trace.frames.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    MemoryTrace trace = read_snapshot(bytes, "fuzz");
    check_indices(trace);
    conclude_kinds(trace);
    const MemoryMoment greatest = peak(trace, trace.all());
    for (const MemoryMoment& moment : timeline(trace, trace.all(), 20)) {
      expect(total(moment.bytes) <= total(greatest.bytes));
    }
    for (const MemorySite& site : trace.sites) maker_of(trace, site);
  } catch (const flashstep::UserError&) {
  }
  return 0;
}
