// One child process: its pipes, its lines, its end.
//
//   Subprocess peer({.command = {"python3", "peer.py"}, .has_input = true, .errors =
//   Errors::kDropped}); peer.write_line(request); const std::optional<std::string> answer =
//   peer.read_line();
#pragma once

#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "flashstep/error.h"

namespace flashstep {

enum class Errors {
  kApart,
  kMerged,
  kDropped
};  // stderr: a pipe of its own, with stdout, nobody's

struct Child {
  pid_t pid = -1;
  int out = -1, err = -1;  // reading ends of its stdout and stderr; non-blocking, closed on exec()
  int in = -1;             // a socket that its stdin reads from
};

struct ChildOptions {
  std::vector<std::string> command = {};  // looked up in PATH
  std::map<std::string, std::string> variables =
      {};                  // its whole environment; empty: this process's
  bool has_input = false;  // else its stdin is empty
  Errors errors = Errors::kApart;
  int death_signal = SIGKILL;  // what the child gets when this process dies
};

// There is no program of that name, or it is none. Whose mistake that is the caller knows.
class NoProgram : public MachineError {
 public:
  using MachineError::MachineError;
};

// Starts a child in a process group of its own (a terminal's Ctrl-C reaches only this process,
// which forwards it), with no blocked signals, SIGPIPE and SIGXFSZ as they are by default, and
// killed when this process dies. NoProgram, or another MachineError, if it cannot be started.
Child start_child(const ChildOptions& options);

// "ended with exit code 2", "was killed by SIGKILL"; and the exit code, 1 for a killed one.
std::string describe_end(int wait_status);
int exit_code(int wait_status);

// A child that is talked to in lines. It ends with this object, by its death_signal at the latest.
class Subprocess {
 public:
  explicit Subprocess(const ChildOptions& options);
  ~Subprocess();
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  pid_t pid() const { return child_.pid; }
  void kill(int signal) const;

  // Waits until it prints or ends, at most so long; true while it runs. What it printed last is
  // there when this is false. What it prints must be taken: else this does not wait, and it stops
  // when its pipe is full.
  bool wait(int milliseconds);
  // Waits until it ends; all lines that it prints until then. Interrupted as read_line().
  std::vector<std::string> lines_to_end();
  // The whole lines that came since the last call.
  std::vector<std::string> take_lines();
  std::vector<std::string> take_errors();  // from its stderr, with Errors::kApart
  int status() const { return status_; }   // as waitpid() has it, once it has ended
  long peak_resident_kib() const { return peak_resident_kib_; }  // once it has ended

  // False if nobody reads.
  bool write_line(const std::string& line);
  // The next line; nothing if it ended. Interrupted when a SignalGuard receives a signal before:
  // the child does not hear the terminal's.
  std::optional<std::string> read_line();
  void close_input();

 private:
  struct Stream {
    int descriptor = -1;
    std::string begun = {};
    bool open = false;
    std::vector<std::string> take();
  };

  int death_signal_;
  Child child_;
  Stream out_, err_;
  std::vector<std::string> read_ahead_;  // lines that read_line() has not given out
  bool ended_ = false;
  int status_ = 0;
  long peak_resident_kib_ = 0;
};

}  // namespace flashstep
