// Signals that ask for an end as a question that a loop asks, not as an interruption of what it is
// doing.
#pragma once

#include <string>

#include "flashstep/base/progress.h"

namespace flashstep {

// While one is alive, a SIGINT, SIGTERM, SIGHUP (the terminal is gone; left alone where it was
// ignored, as nohup does) or SIGXCPU (the limit of CPU time) is remembered. The same SIGINT or
// SIGTERM half a second after the first ends the process; sooner it belongs to the first, and the
// other two come again by themselves. SIGPIPE and SIGXFSZ
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

// From here on the same signals, unless they are ignored, end the process while no SignalGuard is
// alive, and a second one while one is, with a sentence behind "PROGRAM: " on stderr and without
// the files that it has begun (AtomicFile). It dies of the signal, which shells call 128 + n. So it
// does of SIGBUS, by which a MappedFile says that its bytes are gone.
// `program` must outlive the process.
void end_with_a_sentence(const char* program);

// "Ctrl-C", "SIGTERM", "SIGHUP (the terminal was closed)", ...: what stopped a run, for people.
std::string signal_name(int signal);

// Throws Interrupted(signal, `sentence`) if a SignalGuard received a signal.
void check_interrupted(const std::string& sentence);

// `progress` (which may be empty) that also calls check_interrupted(sentence).
ProgressFunction interruptible(ProgressFunction progress, std::string sentence);

}  // namespace flashstep
