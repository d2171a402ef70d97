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
std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

struct ControlGroups {  // of a version
  const char *root, *limit, *used;
};
constexpr ControlGroups kFirst = {"/sys/fs/cgroup/memory", "/memory.limit_in_bytes",
                                  "/memory.usage_in_bytes"};
constexpr ControlGroups kSecond = {"/sys/fs/cgroup", "/memory.max", "/memory.current"};

// Of what the kernel counts. Pages of files count as used, but are given back before anything is
// killed.
std::optional<uint64_t> left_in_group(const ControlGroups& groups, const std::string& path) {
  const std::string directory = groups.root + path;
  const auto limit = number_in(directory + groups.limit), used = number_in(directory + groups.used);
  if (!limit || !used) return std::nullopt;
  uint64_t files = 0, value = 0;
  std::ifstream stat(directory + "/memory.stat");
  for (std::string name; stat >> name >> value;) {
    if (name == "inactive_file" || name == "active_file") files += value;
  }
  const uint64_t held = *used - std::min(*used, files);
  return *limit - std::min(*limit, held);
}

// What this process's container or job leaves, and those around it: the least.
std::optional<uint64_t> left_in_container() {
  std::optional<uint64_t> least;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "4:memory:/job" or "0::/job"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controller = line.substr(first + 1, second - first - 1);
    if (!controller.empty() && controller != "memory") continue;
    std::string path = line.substr(second + 1);
    while (path.ends_with('/')) path.pop_back();
    for (;; path.resize(path.rfind('/'))) {
      const auto left = left_in_group(controller.empty() ? kSecond : kFirst, path);
      if (left) least = std::min(least.value_or(*left), *left);
      if (path.empty() || path.front() != '/') break;
    }
  }
  return least;
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
