// SIGINT and SIGTERM as a question that a loop asks, not as an interruption of what it is doing.
#pragma once

namespace flashstep {

// While one is alive, the first SIGINT or SIGTERM is remembered and a second one ends the process
// as usual.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

  // The signal that came (SIGINT, SIGTERM), or 0.
  static int received();
};

}  // namespace flashstep
