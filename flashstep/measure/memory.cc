#include "flashstep/measure/memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <sys/resource.h>

namespace flashstep::measure {
namespace {

// "VmRSS:     1234 kB" in /proc/self/status, say; the kernel's kB are 1024 bytes.
uint64_t kib_field(const char* path, const std::string& field) {
  std::ifstream file(path);
  std::string name;
  for (uint64_t kib = 0; file >> name;) {
    if (name == field + ":" && file >> kib) return kib * 1024;
    file.ignore(1 << 16, '\n');
  }
  return 0;
}

uint64_t status_bytes(const std::string& field) { return kib_field("/proc/self/status", field); }

// A file that holds one number; nothing where there is none, or "max".
std::optional<uint64_t> number_in(const char* path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// What the container leaves, of those that the kernel counts (cgroup v2, then v1). Pages of files
// count as used there, but are given back before anything is killed.
std::optional<uint64_t> left_in_container() {
  constexpr const char* kFiles[][3] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
       "/sys/fs/cgroup/memory/memory.stat"}};
  for (const auto& [limit_file, used_file, stat_file] : kFiles) {
    const auto limit = number_in(limit_file), used = number_in(used_file);
    if (!limit || !used) continue;
    uint64_t files = 0, value = 0;
    std::ifstream stat(stat_file);
    for (std::string name; stat >> name >> value;) {
      if (name == "inactive_file" || name == "active_file") files += value;
    }
    const uint64_t held = *used - std::min(*used, files);
    return *limit - std::min(*limit, held);
  }
  return std::nullopt;
}

}  // namespace

uint64_t resident_bytes() { return status_bytes("VmRSS"); }

uint64_t available_bytes() {
  const uint64_t machine = kib_field("/proc/meminfo", "MemAvailable");
  const auto container = left_in_container();
  if (!container) return machine;
  return machine == 0 ? *container : std::min(machine, *container);
}

std::optional<uint64_t> oom_kills() {
  std::ifstream file("/proc/vmstat");
  uint64_t value = 0;
  for (std::string name; file >> name >> value;) {
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

bool may_have_killed_since(std::optional<uint64_t> before) {
  const auto now = oom_kills();
  return !before || !now || *now > *before;
}

void offer_to_oom_killer() { std::ofstream("/proc/self/oom_score_adj") << 1000 << std::flush; }

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
