// The program as a function: a table of commands, each in a file of its own beside this one.
#pragma once

namespace flashstep::apps {

// Runs the command that the arguments name; what went wrong stands on stderr in one sentence.
// Returns the exit code.
int run_program(int argc, char** argv);

}  // namespace flashstep::apps
