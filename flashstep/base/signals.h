// SIGINT and SIGTERM as a question that a loop asks, not as an interruption of what it is doing.
#pragma once

#include <string>

#include "flashstep/base/progress.h"

namespace flashstep {

// While one is alive, the first SIGINT or SIGTERM is remembered and a second one ends the process
// as usual. They nest: what came during the outermost is received by all.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

  // The signal that came (SIGINT, SIGTERM), or 0.
  static int received();
};

// Throws Interrupted(signal, `sentence`) if a SignalGuard received a signal.
void check_interrupted(const std::string& sentence);

// `progress` (which may be empty) that also calls check_interrupted(sentence).
ProgressFunction interruptible(ProgressFunction progress, std::string sentence);

}  // namespace flashstep
