#include "flashstep/measure/others_cpu.h"

#include <algorithm>
#include <fstream>
#include <sched.h>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

namespace flashstep::measure {
namespace {

std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

double own_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

}  // namespace

CpuOfOthers::CpuOfOthers()
    : cpus_(usable_cpus()),
      begin_(std::chrono::steady_clock::now()),
      others_before_(others_seconds()) {}

// "cpu1 user nice system idle ...": interrupts stand further on, since ours, of the loopback, too,
// are among them.
double CpuOfOthers::others_seconds() const {
  std::ifstream file("/proc/stat");
  double ticks = 0;
  for (std::string name; file >> name && name.starts_with("cpu");) {
    double user = 0, nice = 0, system = 0;
    file >> user >> nice >> system;
    file.ignore(1 << 16, '\n');
    const bool is_one = name.size() > 3;  // the first line is their sum
    if (is_one && std::find(cpus_.begin(), cpus_.end(), std::stoi(name.substr(3))) != cpus_.end())
      ticks += user + nice + system;
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK)) - own_seconds();
}

double CpuOfOthers::share() const {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
  const double all = passed.count() * static_cast<double>(cpus_.size());
  return all > 0 ? std::clamp((others_seconds() - others_before_) / all, 0.0, 1.0) : 0;
}

}  // namespace flashstep::measure
