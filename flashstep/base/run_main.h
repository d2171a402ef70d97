// The end of a program: its exit code, and one sentence about what went wrong.
#pragma once

#include <functional>
#include <string>

namespace flashstep {

// Runs `work`, the body of a main(), and returns what it returns. An exception becomes a sentence
// on stderr, behind "PROGRAM: ", and an exit code: 2 for UserError, 128 + n for Interrupted by
// signal n, 1 for all others.
int run_main(const std::string& program, const std::function<int()>& work);

}  // namespace flashstep
