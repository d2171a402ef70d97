// Signals that ask for an end as a question that a loop asks, not as an interruption of what it is
// doing.
#pragma once

#include <string>

#include "flashstep/base/progress.h"

namespace flashstep {

// While one is alive, a SIGINT, SIGTERM, SIGHUP (the terminal is gone; left alone where it was
// ignored, as nohup does) or SIGXCPU (the limit of CPU time) is remembered. A second SIGINT or
// SIGTERM ends the process as usual; the other two come again by themselves. SIGPIPE and SIGXFSZ
// are ignored unless somebody handles them: a write that nobody reads or that a limit forbids is an
// error like others. They nest: what came during the outermost is received by all.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

  // The last signal that came, or 0.
  static int received();

  // Written to stderr at once when the first signal comes, by the handler itself: `text` must
  // outlive the guards. Null: nothing. Forgotten with the outermost guard.
  static void announce(const char* text);
};

// "Ctrl-C", "SIGTERM", "SIGHUP (the terminal was closed)", ...: what stopped a run, for people.
std::string signal_name(int signal);

// Throws Interrupted(signal, `sentence`) if a SignalGuard received a signal.
void check_interrupted(const std::string& sentence);

// `progress` (which may be empty) that also calls check_interrupted(sentence).
ProgressFunction interruptible(ProgressFunction progress, std::string sentence);

}  // namespace flashstep
