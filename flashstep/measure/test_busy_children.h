// Other programs that keep every core busy, for tests.
#pragma once

#include <chrono>
#include <csignal>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace flashstep::measure {

// `count` processes that compute from `after` on, until this is destroyed.
class BusyChildren {
 public:
  BusyChildren(int count, std::chrono::milliseconds after) {
    for (int i = 0; i < count; ++i) {
      const pid_t child = fork();
      if (child == 0) compute(after);
      children_.push_back(child);
    }
  }
  ~BusyChildren() {
    for (const pid_t child : children_) {
      if (child <= 0) continue;
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  BusyChildren(const BusyChildren&) = delete;
  BusyChildren& operator=(const BusyChildren&) = delete;

 private:
  [[noreturn]] static void compute(std::chrono::milliseconds after) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::this_thread::sleep_for(after);
    for (volatile unsigned i = 0;;) i = i + 1;
  }

  std::vector<pid_t> children_;
};

}  // namespace flashstep::measure
