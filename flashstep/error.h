// The errors that flashstep raises, and the checks that raise them.
//
// A message is one sentence in the caller's words that names what was expected and what came, after
// the name of what was called in brackets: "[attention] expected k of shape (B, H, M, 64), got (2,
// 8, 100, 32)".
#pragma once

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace flashstep {

// The caller's mistake: arguments, configuration, input files. The program exits with 2.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  UserError(const std::string& what, std::string tensor)
      : std::runtime_error(what), tensor_(std::move(tensor)) {}
  // The tensor or parameter that it is about, by name, the first of several: "fc1.weight". Empty:
  // about none that has a name.
  const std::string& tensor() const { return tensor_; }

 private:
  std::string tensor_;
};

// The machine's failure: disk, network, GPU, a lost rank. The program exits with 1.
class MachineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A rank died, hangs, failed or left, and this one waits for it: what a Group, and all that uses
// one, throws then (group.h).
class LostRank : public MachineError {
 public:
  LostRank(const std::string& what, int rank) : MachineError(what), rank_(rank) {}
  int rank() const { return rank_; }  // the first of several; -1: it is not known which

 private:
  int rank_;
};

// The user asked to stop, and everything is saved. The program exits with 128 + signal().
class Interrupted : public std::runtime_error {
 public:
  Interrupted(int signal, const std::string& what) : std::runtime_error(what), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

// The parts streamed one after the other.
template <typename... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws UserError with the concatenated parts unless `condition` holds:
//   require(rank == 3, "[linear] expected x of rank 3, got ", rank);
template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition)
    throw UserError(::flashstep::str(parts...));  // qualified: c10::str is found by ADL
}

// The same, about the tensor or parameter of that name (UserError::tensor).
template <typename... Parts>
void require_tensor(const std::string& name, bool condition, const Parts&... parts) {
  if (!condition) throw UserError(::flashstep::str(parts...), name);
}

// Throws MachineError(parts..., ": ", the text of `error_number`).
[[noreturn]] void throw_errno(int error_number, const std::string& what);

// Runs `work`, the body of a main(), and returns what it returns. An exception becomes a sentence
// on stderr, behind "PROGRAM: ", and an exit code: 2 for UserError, 128 + n for Interrupted by
// signal n, 1 for all others.
int run_main(const std::string& program, const std::function<int()>& work);

}  // namespace flashstep
