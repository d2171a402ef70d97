#include "flashstep/report/failure.h"

#include <new>

#include <c10/util/Exception.h>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/memory.h"

namespace flashstep::report {
namespace {

constexpr Status kUnmeasured[] = {Status::kOutOfMemory, Status::kRefused, Status::kFailed};

const char* word_of(Status status) {
  switch (status) {
    case Status::kMeasured:
      return "";
    case Status::kOutOfMemory:
      return "OOM";
    case Status::kRefused:
      return "refused";
    case Status::kFailed:
      break;
  }
  return "failed";
}

// The words of a process in "rank 0 of 1 (process 4711) ended with exit code 1: ...".
std::string own_words(const std::string& failure) {
  const size_t end = failure.find("exit code ");
  const size_t own = end == std::string::npos ? end : failure.find(": ", end);
  return own == std::string::npos ? failure : failure.substr(own + 2);
}

}  // namespace

std::string Outcome::word() const { return word_of(status); }

std::string Outcome::sentence() const { return why.empty() ? word() : word() + ": " + why; }

Outcome outcome_from(const std::string& sentence) {
  for (const Status status : kUnmeasured) {
    const std::string word = word_of(status);
    if (sentence == word) return {status, ""};
    if (sentence.starts_with(word + ": ")) return {status, sentence.substr(word.size() + 2)};
  }
  return {is_out_of_memory(sentence) ? Status::kOutOfMemory : Status::kFailed, sentence};
}

Outcome outcome_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Interrupted&) {
    throw;
  } catch (const c10::OutOfMemoryError& what) {
    return {Status::kOutOfMemory, first_line(what.what_without_backtrace())};
  } catch (const std::bad_alloc&) {
    return {Status::kOutOfMemory, ""};
  } catch (const UserError& what) {
    const Outcome said = outcome_from(first_line(what.what()));
    return said.failed() ? Outcome{Status::kRefused, said.why} : said;
  } catch (const c10::Error& what) {
    return outcome_from(first_line(what.what_without_backtrace()));
  } catch (const std::exception& what) {
    return outcome_from(first_line(what.what()));
  }
}

Outcome attempt(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (...) {
    return outcome_of(std::current_exception());
  }
}

Outcome outcome_of_ranks(const std::string& failure, int exit_code, int ranks,
                         std::optional<uint64_t> kills) {
  const std::string words = ranks == 1 ? own_words(failure) : failure;
  if (exit_code == 2) return {Status::kRefused, own_words(failure)};
  if (failure.find("SIGKILL") != std::string::npos && measure::may_have_killed_since(kills))
    return {Status::kOutOfMemory, words};
  return {is_out_of_memory(words) ? Status::kOutOfMemory : Status::kFailed, words};
}

bool is_out_of_memory(const std::string& words) {
  // LibTorch's allocators, and CUDA's libraries (CUBLAS_STATUS_ALLOC_FAILED).
  for (const char* part : {"out of memory", "can't allocate memory", "ALLOC_FAILED"}) {
    if (words.find(part) != std::string::npos) return true;
  }
  return false;
}

bool gpu_answers() {
  try {
    measure::synchronize_gpu();
    return true;
  } catch (const MachineError&) {
    return false;
  }
}

}  // namespace flashstep::report
