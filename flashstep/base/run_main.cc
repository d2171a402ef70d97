#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

constexpr int kMachineFailure = 1, kCallerMistake = 2;

// A name that leads nowhere is the caller's mistake.
int code_of(const std::error_code& error) {
  const bool is_name = error == std::errc::too_many_symbolic_link_levels ||
                       error == std::errc::filename_too_long || error == std::errc::not_a_directory;
  return is_name ? kCallerMistake : kMachineFailure;
}

// LibTorch's errors carry a backtrace below their first line, which is not for people.
std::string sentence_of_others(const std::string& what) {
  const std::string line = first_line(what);
  const bool is_memory = line.find("out of memory") != std::string::npos ||
                         line.find("can't allocate memory") != std::string::npos;
  if (is_memory) return "out of memory (a smaller model or batch needs less): " + line;
  return what.find("\nException raised from ") == std::string::npos ? line
                                                                    : "LibTorch failed: " + line;
}

}  // namespace

namespace {

// What a caller gave may be a megabyte of one line.
std::string of_readable_length(const std::string& sentence) {
  constexpr size_t kBegin = 1200, kEnd = 300;
  if (sentence.size() <= kBegin + kEnd) return sentence;
  return printable_utf8(sentence.substr(0, kBegin)) + " [...] " +
         printable_utf8(sentence.substr(sentence.size() - kEnd));
}

}  // namespace

int run_main(const std::string& program, const std::function<int()>& work) {
  const auto fail = [&](int code, const std::string& sentence) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), of_readable_length(sentence).c_str());
    return code;
  };
  try {
    return work();
  } catch (const Interrupted& interrupted) {
    return fail(128 + interrupted.signal(), interrupted.what());
  } catch (const UserError& error) {
    return fail(kCallerMistake, error.what());
  } catch (const MachineError& error) {
    return fail(kMachineFailure, error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(code_of(error.code()),
                str("cannot use ", error.path1().string(), ": ", error.code().message()));
  } catch (const std::bad_alloc&) {
    return fail(kMachineFailure, "out of memory");
  } catch (const std::exception& error) {
    return fail(kMachineFailure, sentence_of_others(error.what()));
  } catch (...) {
    return fail(kMachineFailure, "stopped by an exception that is no std::exception");
  }
}

}  // namespace flashstep
