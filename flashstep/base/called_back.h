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
