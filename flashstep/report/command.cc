#include "flashstep/report/command.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <unistd.h>

#include "flashstep/base/signals.h"
#include "flashstep/base/subprocess.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"

namespace flashstep::tools {
namespace {

// The last part with something on it; a progress bar begins its lines anew with a carriage return.
std::string last_part(std::string line) {
  line.erase(line.find_last_not_of('\r') + 1);
  return line.substr(line.rfind('\r') + 1);
}

namespace fs = std::filesystem;

constexpr double kMostSeconds = 120;  // a page of hundreds of pictures takes some ten

}  // namespace

CommandOutcome run_command(const CommandOptions& options) {
  std::ofstream log;
  if (!options.log.empty()) log.open(options.log);
  if (!log) throw_errno(errno, "[report] cannot write " + options.log.string());
  // SIGTERM: a benchmark stops its own ranks then.
  Subprocess process({.command = options.command, .death_signal = SIGTERM});
  CommandOutcome outcome;
  bool timed_out = false;
  const double begin = measure::steady_seconds();
  for (bool running = true; running;) {
    running = process.wait(/*milliseconds=*/100);
    for (const std::string& line : process.take_lines()) log << line << '\n';
    for (const std::string& line : process.take_errors()) {
      log << line << '\n';
      if (!last_part(line).empty()) outcome.last_error = last_part(line);
    }
    const int signal = SignalGuard::received();
    if (running && signal != 0 && outcome.signal == 0) {
      outcome.signal = signal;
      process.kill(signal);
    }
    if (options.most_seconds > 0 && !timed_out &&
        measure::steady_seconds() - begin > options.most_seconds) {
      timed_out = true;
      process.kill(SIGKILL);
    }
    if (options.while_running) options.while_running(outcome.last_error);
  }
  if (exit_code(process.status()) == 0) return outcome;
  const std::string how = timed_out ? str("took more than ", options.most_seconds, " s")
                                    : describe_end(process.status());
  // The kernel kills a process when memory runs out, and says nothing.
  const bool killed = contains(how, "SIGKILL");
  outcome.failure = str(how, killed ? " (as Linux does when memory runs out)" : "",
                        outcome.last_error.empty() ? "" : ": ", outcome.last_error);
  return outcome;
}

std::string print_pdf(const fs::path& html, const fs::path& pdf) {
  // A folder of its own for its state: a browser that is open has a lock on the usual one.
  const fs::path state = fs::absolute(pdf).string() + ".state", printed = state / "page.pdf";
  const char* named = std::getenv("FLASHSTEP_CHROMIUM");
  std::vector<std::string> programs = {"chromium", "chromium-browser", "google-chrome"};
  if (named != nullptr) programs = {named};
  for (const std::string& chromium : programs) {
    CommandOptions command;
    command.command = {
        chromium,
        "--headless",
        "--disable-gpu",
        "--no-pdf-header-footer",
        "--disable-pdf-tagging",  // saves a fourth of the time and two thirds of the file
        "--user-data-dir=" + state.string(),
        "--print-to-pdf=" + printed.string(),
        "file://" + fs::absolute(html).string()};
    // The page is our own and may load nothing; as root Chromium starts in no other way.
    if (geteuid() == 0) command.command.insert(command.command.begin() + 1, "--no-sandbox");
    command.most_seconds = kMostSeconds;
    CommandOutcome outcome;
    try {
      outcome = run_command(command);
    } catch (const NoProgram&) {
      continue;
    }
    std::error_code missing, ignored;
    if (outcome.failure.empty()) fs::rename(printed, pdf, missing);
    fs::remove_all(state, ignored);
    if (!outcome.failure.empty()) return chromium + " " + outcome.failure;
    if (!missing) return "";
    return str(chromium, " wrote none",
               outcome.last_error.empty() ? "" : ": " + outcome.last_error);
  }
  return "there is no chromium in PATH";
}

}  // namespace flashstep::tools
