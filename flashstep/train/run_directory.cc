#include "flashstep/train/run_directory.h"

#include <algorithm>
#include <exception>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/train/checkpoint_folder.h"

namespace flashstep {

namespace fs = std::filesystem;

namespace {

// What a start writes before config.json, beside the lock.
bool comes_before_config(const std::string& name) {
  return name == "tokenizer" || name == "tokenizer.unfinished" || name == "bigram.json" ||
         name == "checkpoints" || name.starts_with(".bigram.json.tmp-") ||
         name.starts_with(".config.json.tmp-");
}

constexpr std::string_view kMark = "flashstep train\n";  // in the lock of a run

bool is_marked(const fs::path& lock) {
  if (!fs::is_regular_file(fs::symlink_status(lock))) return false;
  std::ifstream file(lock);
  std::string line;
  return std::getline(file, line) && line + "\n" == kMark;
}

bool has_steps(const fs::path& metrics) {
  std::error_code error;
  const auto size = fs::file_size(metrics, error);
  return !error && size > 0;
}

// Whether a line is of a step: that of step 0 is an evaluation before the first.
bool has_trained(const fs::path& metrics) {
  if (!has_steps(metrics)) return false;
  std::istringstream lines(read_file(metrics));
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || json.value("step", nlohmann::json(1)) != 0) return true;
  }
  return false;
}

constexpr const char* kFiles[] = {"lock",     "config.json", "metrics.jsonl", "samples.txt",
                                  "loss.svg", "loss.png",    "bigram.json"};

// Of the directory's entries, those begun among them.
bool is_of_run(const std::string& name) {
  return name == "tensorboard" || comes_before_config(name) ||
         std::ranges::any_of(kFiles, [&](const char* file) {
           return name == file || name.starts_with(str(".", file, ".tmp-"));
         });
}

bool has_checkpoint(const fs::path& directory) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory / "checkpoints", error)) {
    if (entry.path().filename().string().starts_with("step_")) return true;
  }
  return false;
}

}  // namespace

RunDirectory::RunDirectory(fs::path directory, bool resume)
    : path_(std::move(directory)), exceptions_(std::uncaught_exceptions()) {
  require(!fs::exists(path_) || fs::is_directory(path_),
          "[run] expected a directory, got the file ", path_.string());
  const std::string others = others_entry(path_);
  require(others.empty(), "[run] expected a new or empty directory, or that of a run, got ",
          path_.string(), ", which holds ", others, "; choose another run directory");
  std::error_code unknown;
  was_there_ = fs::exists(path_);
  was_empty_ = !was_there_ || fs::is_empty(path_, unknown);
  make_directories(path_);
  lock_ = std::make_unique<FileLock>(
      path_ / "lock",
      flashstep::str(
          "[run] ", path_.string(),
          " is in use by another process; wait for it, or choose another run directory"));
  require(std::filesystem::file_size(path_ / "lock") == 0 || is_marked(path_ / "lock"),
          "[run] expected ", (path_ / "lock").string(),
          " to be empty or a run's, got other text; choose another run directory");
  lock_->write(kMark);
  require(resume || !holds_run(path_), "[run] ", path_.string(),
          " holds a run already; resume it, or choose another run directory");
  // A run makes its checkpoints' directory before its first step.
  require(!has_steps(path_ / "metrics.jsonl") || fs::is_directory(path_ / "checkpoints"),
          "[resume] expected ", (path_ / "checkpoints").string(),
          ", as metrics.jsonl beside it has steps, got none; beginning anew would replace them: "
          "bring the checkpoints back, or choose another run directory");
}

RunDirectory::~RunDirectory() {
  if (std::uncaught_exceptions() == exceptions_) return;
  try {
    forget_start();
  } catch (...) {  // the exception that is under way says what went wrong
  }
}

void RunDirectory::forget_start() const {
  if (!was_empty_ || has_trained(metrics())) return;
  std::error_code error;
  if (fs::exists(checkpoints(), error) && !fs::is_empty(checkpoints(), error)) return;
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(path_, error)) entries.push_back(entry.path());
  const auto is_own = [](const fs::path& entry) { return is_of_run(entry.filename().string()); };
  if (error || !std::ranges::all_of(entries, is_own)) return;
  for (const fs::path& entry : entries) fs::remove_all(entry, error);
  if (!was_there_) fs::remove(path_, error);
}

bool holds_run(const fs::path& directory) {
  const bool has_config = fs::exists(directory / "config.json"),
             has_metrics = fs::exists(directory / "metrics.jsonl");
  if (has_config && has_metrics) return true;
  return (has_config || has_metrics) &&
         (fs::exists(directory / "lock") || has_checkpoint(directory));
}

std::string others_entry(const fs::path& directory) {
  if (holds_run(directory) || is_marked(directory / "lock")) return "";
  std::error_code unknown;
  const bool begun = fs::is_regular_file(fs::symlink_status(directory / "lock", unknown)) &&
                     fs::file_size(directory / "lock", unknown) == 0;
  std::string first;
  std::error_code error;  // what cannot be listed cannot be locked either
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (begun && (name == "lock" || comes_before_config(name))) continue;
    if (first.empty() || name < first) first = name;
  }
  return first;
}

fs::path default_run_directory(const std::string& stem, bool resume) {
  const fs::path first = fs::path("runs") / stem;
  fs::path last = first;
  for (int number = 2;; ++number) {
    const fs::path next = flashstep::str(first.string(), "-", number);
    const bool is_taken =
        holds_run(last) || !others_entry(last).empty() || is_locked(last / "lock");
    if (resume ? !holds_run(next) : !is_taken) return last;
    last = next;
  }
}

void require_no_file_of_run(const fs::path& output) {
  std::error_code error;  // what a link leads to is what is written
  const fs::path path = fs::weakly_canonical(output, error), folder = path.parent_path();
  if (error || !fs::exists(path)) return;
  const std::string name = path.filename().string(), in = folder.filename().string();
  const bool is_file = holds_run(folder) && std::ranges::find(kFiles, name) != std::end(kFiles);
  const bool is_of_part =
      (in == "tokenizer" || in == "tensorboard") && holds_run(folder.parent_path());
  const bool is_of_checkpoint = is_checkpoint_file(name) && fs::exists(folder / kStateName);
  require(!is_file && !is_of_part && !is_of_checkpoint, "expected to write another file than ",
          output, ", which is a run's own");
}

}  // namespace flashstep
