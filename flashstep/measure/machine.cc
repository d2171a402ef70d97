#include "flashstep/measure/machine.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <sys/utsname.h>
#include <unistd.h>

#include "flashstep/base/text.h"

namespace flashstep::measure {
namespace {

std::string text_of(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// The instruction sets that decide how fast matrix products are, of all that the processor lists.
std::string matrix_instructions(const std::string& flags) {
  std::vector<std::string> found;
  std::istringstream words(flags);
  for (std::string word; words >> word;)
    for (const char* wanted : {"avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16",
                               "asimd", "sve", "bf16", "i8mm"})
      if (word == wanted) found.push_back(word);
  return join(found, " ");
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));  // more than 1024 processors
}

uint64_t memory_bytes() {
  const auto pages = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
  const uint64_t machine = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (const char* limit : {"/sys/fs/cgroup/memory.max",                       // cgroup v2
                            "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {  // v1
    std::ifstream file(limit);
    uint64_t bytes = 0;  // "max" is no number: no limit
    if (file >> bytes && bytes > 0) return std::min(machine, bytes);
  }
  return machine;
}

std::string system_name() {
  utsname name = {};
  uname(&name);
  return str(name.sysname, " ", name.release);
}

}  // namespace

std::string internal::cpuinfo_field(const std::string& cpuinfo, const std::string& name) {
  std::istringstream lines(cpuinfo);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':');
    if (colon != std::string::npos && trimmed(line.substr(0, colon)) == name)
      return trimmed(line.substr(colon + 1));
  }
  return "";
}

Machine describe_machine() {
  const std::string cpuinfo = text_of("/proc/cpuinfo");
  Machine machine;
  machine.processor = internal::cpuinfo_field(cpuinfo, "model name");
  std::string flags = internal::cpuinfo_field(cpuinfo, "flags");
  if (flags.empty()) flags = internal::cpuinfo_field(cpuinfo, "Features");  // Arm
  machine.instructions = matrix_instructions(flags);
  if (machine.processor.empty()) {
    utsname name = {};
    uname(&name);
    machine.processor = str("unnamed ", name.machine, " processor");
  }
  machine.cores = usable_cores();
  machine.threads = libtorch_threads();
  machine.memory_bytes = memory_bytes();
  machine.system = system_name();
  machine.libtorch_version = libtorch_version();
  machine.gpus = list_gpus();
  if (!machine.gpus.empty()) {
    machine.cuda_version = cuda_runtime_version();
    machine.driver_version = gpu_driver_version();
  }
  machine.unused_gpu = !built_with_cuda() && std::filesystem::exists("/dev/nvidia0");
  return machine;
}

std::string one_line(const Machine& machine) {
  const std::string host =
      str(machine.processor, ", ", machine.cores, machine.cores == 1 ? " core" : " cores", ", ",
          human_bytes(machine.memory_bytes));
  if (machine.gpus.empty()) return host;
  return str(machine.gpus.size(), " x ", machine.gpus[0].name, " with ",
             human_bytes(machine.gpus[0].memory_bytes), "; ", host);
}

}  // namespace flashstep::measure
