// A memory snapshot of some size, written, read, and drawn to moments: seconds and memory.
//   measure_memory_snapshot_bench [megabytes, 100]
#include <cstdio>
#include <cstdlib>

#include "flashstep/measure/clock.h"
#include "flashstep/measure/memory.h"
#include "flashstep/measure/memory_snapshot.h"

namespace flashstep::measure {
namespace {

constexpr double kBytesAnEvent = 65;  // of the pickle, about: to begin with a good guess

// Allocations of which each lives through the next few thousand.
MemoryTrace synthetic(uint32_t count) {
  constexpr uint32_t kLife = 4096;
  MemoryTrace trace;
  trace.frames = {{"flashstep::f()", "/x/f.cc", 7}};
  for (int i = 0; i < 500; ++i) {
    trace.sites.push_back({"step/forward/layers." + std::to_string(i), "aten::mm", {0}});
  }
  const auto add = [&](uint32_t allocation, bool is_free) {
    const auto event = static_cast<uint32_t>(trace.events.size());
    Allocation& a = trace.allocations[allocation];
    (is_free ? a.end : a.begin) = event;
    trace.events.push_back({event * 1e-6, allocation, is_free});
  };
  for (uint32_t i = 0; i < count; ++i) {
    Allocation a;
    a.address = 0x7f0000000000 + i % kLife * (1ull << 20);
    a.bytes = 1 + i * 7919ll % (1 << 20);
    a.site = 1 + i % 500;
    if (i >= kLife) add(i - kLife, true);
    trace.allocations.push_back(a);
    add(i, false);
  }
  return trace;
}

void run(double megabytes) {
  double begin = steady_seconds();
  const auto lap = [&](const char* what, double size) {
    const double now = steady_seconds();
    std::printf("%-6s %10.1f %8.2f s %10.1f MB peak\n", what, size, now - begin,
                static_cast<double>(peak_resident_bytes()) / 1e6);
    begin = steady_seconds();
  };
  std::printf("%-6s %10s\n", "", "MB or moments");
  std::string bytes =
      to_snapshot(synthetic(static_cast<uint32_t>(megabytes * 1e6 / kBytesAnEvent / 3)));
  lap("write", static_cast<double>(bytes.size()) / 1e6);
  reset_peak_resident();
  const MemoryTrace trace = read_snapshot(bytes, "the bench");
  lap("read", static_cast<double>(bytes.size()) / 1e6);
  lap("draw", static_cast<double>(timeline(trace, trace.all(), 1000).size()));
}

}  // namespace
}  // namespace flashstep::measure

int main(int argc, char** argv) {
  const double megabytes = argc > 1 ? std::atof(argv[1]) : 100;
  flashstep::measure::run(megabytes > 0 ? megabytes : 100);
}
