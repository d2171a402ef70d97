// Another program that a report runs and waits for: a measurement, or a browser that prints.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace flashstep::tools {

struct CommandOptions {
  std::vector<std::string> command;  // looked up in PATH
  std::filesystem::path log;         // gets all that it prints; empty: nobody does
  double most_seconds = 0;           // ends it after so long; 0: never
  // Ten times a second: the last line that it printed on stderr, or none yet.
  std::function<void(const std::string& last_line)> while_running;
};

struct CommandOutcome {
  int exit_code = 0;       // 1 for a killed one
  std::string how;         // "ended with exit code 2", "was killed by SIGKILL"
  std::string last_error;  // line on its stderr
  bool timed_out = false;
  int signal = 0;  // SIGINT or SIGTERM that came to this process, and was passed on
};

// A SIGINT or SIGTERM while a SignalGuard is alive is passed on to the command, which is waited
// for. MachineError if it cannot be started.
CommandOutcome run_command(const CommandOptions& options);

// A report on paper: the HTML page printed by a Chromium without a window, where there is one.

// The first of chromium, chromium-browser, google-chrome and what $FLASHSTEP_CHROMIUM names that is
// in PATH; empty without one.
std::string find_chromium();

// Writes `pdf` from the page. Empty, or a sentence that says why there is none.
std::string print_pdf(const std::string& chromium, const std::filesystem::path& html,
                      const std::filesystem::path& pdf);

}  // namespace flashstep::tools
