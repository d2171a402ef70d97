// Signals in a process of Python's.
#pragma once

namespace flashstep::bindings {

// Whether a handler of Python's raised an exception: KeyboardInterrupt after Ctrl-C, or what a
// program of its own raises. Those that are due run here, in Python's main thread alone.
bool python_wants_to_stop();

// In a handler of what a stop has led to: throws the exception that made this thread stop, if there
// is one that nobody was told of, as Python's torch knows it.
void rethrow_what_python_raised();

}  // namespace flashstep::bindings
