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
  std::string failure;     // "ended with exit code 2: out of memory"; empty: none
  std::string last_error;  // line on its stderr
  int signal = 0;          // SIGINT or SIGTERM that came to this process, and was passed on
};

// A SIGINT or SIGTERM while a SignalGuard is alive is passed on to the command, which is waited
// for. MachineError if it cannot be started.
CommandOutcome run_command(const CommandOptions& options);

// A report on paper: the HTML page printed by a Chromium without a window. Empty, or a sentence
// that says why there is none. The Chromium is what $FLASHSTEP_CHROMIUM names, or else the first of
// chromium, chromium-browser and google-chrome that is in PATH.
std::string print_pdf(const std::filesystem::path& html, const std::filesystem::path& pdf);

}  // namespace flashstep::tools
