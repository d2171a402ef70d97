// Another program that takes turns with a benchmark: one line to it, one line back.
#pragma once

#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace flashstep::report {

class PeerProcess {
 public:
  // Starts `command` (looked up in PATH). Its stderr is discarded. MachineError if it cannot be
  // started.
  explicit PeerProcess(const std::vector<std::string>& command);
  // Closes its input, which ends it.
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // Sends `line`, which must not contain a newline, and waits for the answer. Nothing if the
  // process has ended.
  std::optional<std::string> ask(const std::string& line);
  // The next line it prints, without the newline.
  std::optional<std::string> read_line();

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
  std::string buffer_;
};

}  // namespace flashstep::report
