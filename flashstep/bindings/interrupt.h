// Ctrl-C in a process of Python's.
#pragma once

namespace flashstep::bindings {

// Whether Python's handlers of signals, which run here if any are due, want this thread to stop.
// The exception that they raised, KeyboardInterrupt, is raised again when Python goes on. Without
// the interpreter's lock.
bool python_wants_to_stop();

}  // namespace flashstep::bindings
