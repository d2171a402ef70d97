// What became of what was measured: the one place that tells one error from another. A benchmark
// goes on with the next case, whatever it was; how the command ends is decided by Run
// (benchmark.h).
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>

namespace flashstep::report {

enum class Status { kMeasured, kOutOfMemory, kRefused, kFailed };

struct Outcome {
  Status status = Status::kMeasured;
  std::string why = {};  // may be empty

  bool measured() const { return status == Status::kMeasured; }
  bool failed() const { return status == Status::kFailed; }
  std::string word() const;      // "", "OOM", "refused", "failed": a cell
  std::string sentence() const;  // "OOM: why", or the word alone
  bool operator==(const Outcome&) const = default;
};

// "OOM: why", "refused: why", "failed: why"; what begins with none of them failed.
Outcome outcome_from(const std::string& sentence);

// Of an exception: memory that was too small, a UserError (refused), anything else (failed).
// Interrupted is thrown on.
Outcome outcome_of(const std::exception_ptr& error);
// Of a call.
Outcome attempt(const std::function<void()>& work);

// Of processes that ended with `exit_code`, by the sentence of RanksOutcome::failure; `kills`:
// measure::oom_kills() before they began. The words of a process that was alone are its own.
Outcome outcome_of_ranks(const std::string& failure, int exit_code, int ranks,
                         std::optional<uint64_t> kills);

bool is_out_of_memory(const std::string& words);  // of an error's message

// After an error of CUDA's own nothing can be measured any more in this process.
bool gpu_answers();

}  // namespace flashstep::report
