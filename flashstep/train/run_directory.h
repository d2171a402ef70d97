// The directory of a run: one process at a time, nothing overwritten.
//   RUN/{config.json, metrics.jsonl, loss.svg, loss.png, samples.txt, tensorboard/, tokenizer/,
//   checkpoints/, bigram.json,
//   lock}
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "flashstep/detail/files.h"
#include "flashstep/loop.h"

namespace flashstep {

class RunDirectory {
 public:
  // Creates the directory if missing and locks it until destroyed (or until the process dies).
  // UserError if another process holds it, if it holds a run already and `resume` is false, or,
  // with nothing touched, if it is neither empty nor a run's.
  RunDirectory(std::filesystem::path directory, bool resume);

  // Where an exception ends the start: what was made here goes again, and the directory, if it was
  // not there. Unless something was trained, the directory was not empty, or others have put
  // something into it.
  ~RunDirectory();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path tensorboard() const { return path_ / "tensorboard"; }
  std::filesystem::path config() const { return path_ / "config.json"; }
  std::filesystem::path samples() const { return path_ / "samples.txt"; }
  std::filesystem::path bigram() const { return path_ / "bigram.json"; }
  std::filesystem::path tokenizer() const { return path_ / "tokenizer"; }

 private:
  void forget_start() const;

  std::filesystem::path path_;
  bool was_there_ = false, was_empty_ = false;
  int exceptions_;  // under way when this was made
  std::unique_ptr<FileLock> lock_;
};

// run() in a directory that the caller has locked already (null on every rank but the first);
// options.run_directory is not read.
LoopResult run(const Job& job, const LoopOptions& options, const RunDirectory* directory);

// True if a run was started in `directory`: its config.json or metrics.jsonl is there, and, since
// others have files of these names, a second sign: the other one, the lock, a checkpoint.
bool holds_run(const std::filesystem::path& directory);

// UserError if `output`, a file to write, is one of those that a run, any run, consists of.
void require_no_file_of_run(const std::filesystem::path& output);

// What is in `directory`, where that is no run's: a name, empty if there is nothing. A start that
// was stopped before it wrote config.json is known by what stands in its lock; one of a version
// that wrote nothing into it by having nothing but what comes before config.json.
std::string others_entry(const std::filesystem::path& directory);

// Where a run goes that was given no directory: runs/STEM, or runs/STEM-2, -3, ... if that is
// taken. With `resume` the last of those that hold a run.
std::filesystem::path default_run_directory(const std::string& stem, bool resume);

}  // namespace flashstep
