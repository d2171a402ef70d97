#include "flashstep/report/document/command.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>

#include "flashstep/base/signals.h"
#include "flashstep/base/subprocess.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"

namespace flashstep::report {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// The last part with something on it; a progress bar begins its lines anew with a carriage return.
std::string last_part(std::string line) {
  line.erase(line.find_last_not_of('\r') + 1);
  return line.substr(line.rfind('\r') + 1);
}

}  // namespace

CommandOutcome run_command(const CommandOptions& options) {
  std::unique_ptr<std::FILE, CloseFile> log;
  if (!options.log.empty()) {
    log.reset(std::fopen(options.log.c_str(), "w"));
    if (log == nullptr) throw_errno(errno, "[report] cannot write " + options.log.string());
  }
  // SIGTERM: a benchmark stops its own ranks then.
  Subprocess process({.command = options.command, .death_signal = SIGTERM});
  CommandOutcome outcome;
  const double begin = measure::steady_seconds();
  for (bool running = true; running;) {
    running = process.wait(/*milliseconds=*/100);
    const auto keep = [&](const std::string& line) {
      if (log) std::fprintf(log.get(), "%s\n", line.c_str());
    };
    for (const std::string& line : process.take_lines()) keep(line);
    for (const std::string& line : process.take_errors()) {
      keep(line);
      if (!last_part(line).empty()) outcome.last_error = last_part(line);
    }
    const int signal = SignalGuard::received();
    if (running && signal != 0 && outcome.signal == 0) {
      outcome.signal = signal;
      process.kill(signal);
    }
    if (options.most_seconds > 0 && !outcome.timed_out &&
        measure::steady_seconds() - begin > options.most_seconds) {
      outcome.timed_out = true;
      process.kill(SIGKILL);
    }
    if (options.while_running) options.while_running(outcome.last_error);
  }
  outcome.exit_code = exit_code(process.status());
  outcome.how = describe_end(process.status());
  return outcome;
}

}  // namespace flashstep::report
