#include "flashstep/report/document/command.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "flashstep/base/signals.h"
#include "flashstep/comm/child.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"

namespace flashstep::report {
namespace {

class Log {
 public:
  explicit Log(const std::filesystem::path& path) {
    if (path.empty()) return;
    file_ = std::fopen(path.c_str(), "w");
    if (file_ == nullptr) throw_errno(errno, "[report] cannot write " + path.string());
  }
  ~Log() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  void write(const std::string& bytes) {
    if (file_ != nullptr) std::fwrite(bytes.data(), 1, bytes.size(), file_);
  }

 private:
  std::FILE* file_ = nullptr;
};

// What a pipe holds now. `open` becomes false at its end.
std::string take(int descriptor, bool& open) {
  std::string bytes;
  char buffer[65536];
  ssize_t count = 0;
  while (open &&
         ((count = read(descriptor, buffer, sizeof buffer)) > 0 || (count < 0 && errno == EINTR))) {
    if (count > 0) bytes.append(buffer, static_cast<size_t>(count));
  }
  if (count == 0) open = false;
  return bytes;
}

// The last line with something on it; a progress bar begins its lines anew with a carriage return.
void keep_last_line(std::string& begun, const std::string& bytes, std::string& last) {
  for (const char c : bytes) {
    if (c != '\n' && c != '\r') {
      begun += c;
      continue;
    }
    if (!begun.empty()) last = begun;
    begun.clear();
  }
}

class Running {
 public:
  explicit Running(const CommandOptions& options)
      : options_(options), log_(options.log), child_(start(options)) {}
  ~Running() {
    if (!ended_) {
      kill(child_.pid, SIGKILL);
      waitpid(child_.pid, &status_, 0);
    }
    close(child_.out);
    close(child_.err);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  CommandOutcome wait() {
    const double begin = measure::steady_seconds();
    while (!ended_) {
      pollfd sources[] = {{out_open_ ? child_.out : -1, POLLIN, 0},
                          {err_open_ ? child_.err : -1, POLLIN, 0}};
      poll(sources, 2, /*ms=*/100);
      ended_ = waitpid(child_.pid, &status_, WNOHANG) == child_.pid;
      read_output();  // after the look at its end: what it printed last is there then
      pass_on_signal();
      if (options_.most_seconds > 0 && !outcome_.timed_out &&
          measure::steady_seconds() - begin > options_.most_seconds) {
        outcome_.timed_out = true;
        kill(child_.pid, SIGKILL);
      }
      if (options_.while_running) options_.while_running(outcome_.last_error);
    }
    outcome_.exit_code = exit_code(status_);
    outcome_.how = describe_end(status_);
    return outcome_;
  }

 private:
  static Child start(const CommandOptions& options) {
    ChildOptions child;
    child.command = options.command;
    child.variables = variables_of_process();
    child.death_signal = SIGTERM;  // a benchmark stops its own ranks then
    return start_child(child);
  }

  void read_output() {
    log_.write(take(child_.out, out_open_));
    const std::string errors = take(child_.err, err_open_);
    log_.write(errors);
    keep_last_line(begun_, errors, outcome_.last_error);
  }

  void pass_on_signal() {
    const int signal = SignalGuard::received();
    if (signal == 0 || outcome_.signal != 0 || ended_) return;
    outcome_.signal = signal;
    kill(child_.pid, signal);
  }

  const CommandOptions& options_;
  Log log_;
  Child child_;
  CommandOutcome outcome_;
  std::string begun_;
  bool out_open_ = true, err_open_ = true, ended_ = false;
  int status_ = 0;
};

}  // namespace

CommandOutcome run_command(const CommandOptions& options) { return Running(options).wait(); }

}  // namespace flashstep::report
