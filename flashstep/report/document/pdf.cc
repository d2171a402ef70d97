#include "flashstep/report/document/pdf.h"

#include <cstdlib>
#include <sstream>
#include <unistd.h>

#include "flashstep/base/text.h"
#include "flashstep/report/document/command.h"

namespace flashstep::report {
namespace {

namespace fs = std::filesystem;

constexpr double kMostSeconds = 120;  // a page of hundreds of pictures takes some ten

bool in_path(const std::string& program) {
  if (program.find('/') != std::string::npos) return access(program.c_str(), X_OK) == 0;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

}  // namespace

std::string find_chromium() {
  if (const char* named = std::getenv("FLASHSTEP_CHROMIUM")) return in_path(named) ? named : "";
  for (const char* program : {"chromium", "chromium-browser", "google-chrome"}) {
    if (in_path(program)) return program;
  }
  return "";
}

std::string print_pdf(const std::string& chromium, const fs::path& html, const fs::path& pdf) {
  // A folder of its own for its state: a browser that is open has a lock on the usual one.
  const fs::path state = fs::absolute(pdf).string() + ".state";
  CommandOptions command;
  command.command = {
      chromium,
      "--headless",
      "--disable-gpu",
      "--no-pdf-header-footer",
      "--disable-pdf-tagging",  // saves a fourth of the time and two thirds of the file
      "--user-data-dir=" + state.string(),
      "--print-to-pdf=" + fs::absolute(pdf).string(),
      "file://" + fs::absolute(html).string()};
  // The page is our own and may load nothing; as root Chromium starts in no other way.
  if (geteuid() == 0) command.command.insert(command.command.begin() + 1, "--no-sandbox");
  command.most_seconds = kMostSeconds;
  std::error_code error;
  fs::remove(pdf, error);
  const CommandOutcome outcome = run_command(command);
  fs::remove_all(state, error);
  if (outcome.exit_code == 0 && fs::exists(pdf, error)) return "";
  return str(chromium, " ",
             outcome.timed_out ? str("took more than ", kMostSeconds, " s") : outcome.how,
             outcome.last_error.empty() ? "" : ": " + outcome.last_error);
}

}  // namespace flashstep::report
