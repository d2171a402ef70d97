// Ranks as child processes of this one: for `flashstep launch`, and for tests.
#pragma once

#include <csignal>
#include <string>
#include <sys/types.h>
#include <vector>

#include "flashstep/detail/environment.h"

namespace flashstep {

// A listening socket on a free port of 127.0.0.1, closed on exec().
class FreePort {
 public:
  FreePort();
  ~FreePort() { close(); }
  FreePort(const FreePort&) = delete;
  FreePort& operator=(const FreePort&) = delete;
  void close();  // once rank 0 has it: when rank 0 dies, nobody shall wait for its answer

  int port() const { return port_; }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1, port_ = 0;
};

// `base` (of this process, usually) with what makes a process rank `rank` of `world_size` on this
// machine; rank 0 is told of `port`'s socket, which it must inherit.
Variables rank_variables(Variables base, int rank, int world_size, const FreePort& port);

struct Child {
  pid_t pid = -1;
  int out = -1, err = -1;  // reading ends of its stdout and stderr; non-blocking, closed on exec()
};

struct ChildOptions {
  std::vector<std::string> command;  // looked up in PATH
  Variables variables;
  int inherited = -1;          // a descriptor that stays open in the child
  bool merge_output = false;   // stderr into out; err stays -1
  int death_signal = SIGKILL;  // what the child gets when this process dies
};

// Starts a child in a process group of its own (a terminal's Ctrl-C reaches only this process,
// which forwards it), with no input, no blocked signals, SIGPIPE and SIGXFSZ as they are by
// default, and killed when this process dies. MachineError if the program cannot be started.
Child start_child(const ChildOptions& options);

// "ended with exit code 2", "was killed by SIGKILL"; and the exit code, 1 for a killed one.
std::string describe_end(int wait_status);
int exit_code(int wait_status);

}  // namespace flashstep
