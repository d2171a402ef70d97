#include "flashstep/measure/memory.h"

#include <fstream>
#include <string>
#include <sys/resource.h>

namespace flashstep::measure {
namespace {

// "VmRSS:     1234 kB" in /proc/self/status; the kernel's kB are 1024 bytes.
uint64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string name;
  for (uint64_t kib = 0; status >> name;) {
    if (name == field + ":" && status >> kib) return kib * 1024;
    status.ignore(1 << 16, '\n');
  }
  return 0;
}

}  // namespace

uint64_t resident_bytes() { return status_bytes("VmRSS"); }

uint64_t peak_resident_bytes() {
  const uint64_t peak = status_bytes("VmHWM");
  if (peak > 0) return peak;
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

bool reset_peak_resident() {
  std::ofstream clear_refs("/proc/self/clear_refs");
  clear_refs << "5" << std::flush;
  return clear_refs.good();
}

}  // namespace flashstep::measure
