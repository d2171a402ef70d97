// Work that somebody else's code calls, autograd's for one, for a caller that may know other
// exceptions than ours.
#pragma once

#include <utility>

namespace flashstep {

// `rethrow` is called in handlers of what such work threw, and throws what the caller knows, or the
// same. The process has one; null: everything passes as it is.
using Rethrow = void (*)();
void set_rethrow(Rethrow rethrow);
void rethrow_to_caller();

// Asked from time to time by what waits long: whether the caller wants to stop, as a person's
// Ctrl-C in Python is known to Python alone. Null: nobody is asked.
using WantsToStop = bool (*)();
void set_wants_to_stop(WantsToStop wants_to_stop);
WantsToStop wants_to_stop();

template <typename Work>
decltype(auto) called_back(Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (...) {
    rethrow_to_caller();
    throw;
  }
}

}  // namespace flashstep
