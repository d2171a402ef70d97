// CPU time that other programs take beside this process.
#pragma once

#include <chrono>
#include <vector>

namespace flashstep::measure {

// From its construction on, of the CPUs on which this thread may run (/proc/stat, against this
// process's own time). The kernel counts in ticks, most of them of 10 ms: look at a tenth of a
// second or more.
class CpuOfOthers {
 public:
  CpuOfOthers();
  // 0 to 1 of what these CPUs could have computed until now; 0 where /proc does not say.
  double share() const;

 private:
  double others_seconds() const;  // since the machine runs, less all of this process's

  std::vector<int> cpus_;
  std::chrono::steady_clock::time_point begin_;
  double others_before_ = 0;
};

}  // namespace flashstep::measure
