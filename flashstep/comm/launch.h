// Starts the ranks of a job on this machine, and stops them together.
#pragma once

#include <string>
#include <vector>

namespace flashstep {

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> command;  // program and arguments, the same for every rank
  // When a rank has failed: from asking the others to stop (SIGTERM) to SIGKILL. A rank on a GPU
  // may need a Group's silence (30 s) to see that another is gone and its grace (10 s) to say so.
  double stop_seconds = 45;
  bool label = true;     // "[rank 2] " before every line of output
  int out = 1, err = 2;  // where the ranks' output and our own sentences go
};

// Starts the ranks with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT
// (a free one that stays theirs), forwards SIGINT, SIGTERM, SIGHUP (unless it is
// ignored), SIGXCPU, SIGUSR1 and SIGUSR2 to them, and waits. When a rank ends with another code
// than 0, says which, why and its exit code, and stops the others, and what they all have started
// in their process groups; after a moment (2 s) nothing of these is left. A forwarded signal waits
// for as long as they need to save; the same SIGINT or SIGTERM half a second later kills those that
// have not ended by it within 2 s (or stop_seconds, where that is less). They are stopped as well
// when this process dies. Returns 0; or the first failed rank's exit code; 1 if it was killed by a
// signal; 128 + signal when one was forwarded and the ranks ended by it. UserError if there is no
// such program, MachineError if a rank cannot be started otherwise, or if all went well but their
// output could not be written to `out` (whoever reads it may leave, or close the terminal: that is
// no error).
// Their output waits for its reader, and they for it; neither signals nor ends of ranks do. After a
// signal to stop, a reader that takes nothing for 2 s is given up where somebody waits for it:
// ranks that print more than 1 MiB, or, once they have ended, this function. Signals are taken from
// a descriptor: other threads of the caller must block those above, and SIGCHLD.
int launch(const LaunchOptions& options);

}  // namespace flashstep
