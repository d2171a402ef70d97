#include "flashstep/train/run_directory.h"

#include <utility>

#include "flashstep/base/error.h"

namespace flashstep::train {

namespace fs = std::filesystem;

RunDirectory::RunDirectory(fs::path directory, bool resume) : path_(std::move(directory)) {
  require(!fs::exists(path_) || fs::is_directory(path_),
          "[run] expected a directory, got the file ", path_.string());
  make_directories(path_);
  lock_ = std::make_unique<FileLock>(
      path_ / "lock",
      flashstep::str("[run] ", path_.string(),
                     " is in use by another process; wait for it or give another --run"));
  require(resume || !holds_run(path_), "[run] ", path_.string(),
          " holds a run already; continue it with --resume or give another --run");
}

bool holds_run(const fs::path& directory) {
  return fs::exists(directory / "config.json") || fs::exists(directory / "metrics.jsonl");
}

fs::path default_run_directory(const std::string& stem, bool resume) {
  const fs::path first = fs::path("runs") / stem;
  fs::path last = first;
  for (int number = 2;; ++number) {
    const fs::path next = flashstep::str(first.string(), "-", number);
    if (resume ? !holds_run(next) : !holds_run(last)) return last;
    last = next;
  }
}

}  // namespace flashstep::train
