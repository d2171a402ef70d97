// The border to Python: what crosses it is told in exceptions that Python's torch knows. A caller's
// mistake becomes a ValueError, a lost rank torch.distributed.DistBackendError, and any other
// failure of the machine a RuntimeError, each with our sentence. What a handler of signals raised
// in Python, which made us stop, passes as it is.
#pragma once

#include <utility>

#include <torch/custom_class.h>
#include <torch/library.h>

namespace flashstep::bindings {

// In a handler.
[[noreturn]] void rethrow_for_python();
// The same where a failure of the machine can only be one of the ranks or of what connects them.
[[noreturn]] void rethrow_for_ranks();

// `function`, a free one or an object's, as torch registers it.
template <auto kRethrow, typename R, typename... A>
auto across_border(R (*function)(A...)) {
  return [function](A... arguments) -> R {
    try {
      return function(std::forward<A>(arguments)...);
    } catch (...) {
      kRethrow();
    }
  };
}
template <auto kRethrow, typename C, typename R, typename... A>
auto across_border(R (C::*method)(A...)) {
  return [method](const c10::intrusive_ptr<C>& self, A... arguments) -> R {
    try {
      return (*self.*method)(std::forward<A>(arguments)...);
    } catch (...) {
      kRethrow();
    }
  };
}
template <auto kRethrow, typename C, typename R, typename... A>
auto across_border(R (C::*method)(A...) const) {
  return [method](const c10::intrusive_ptr<C>& self, A... arguments) -> R {
    try {
      return (*self.*method)(std::forward<A>(arguments)...);
    } catch (...) {
      kRethrow();
    }
  };
}
template <typename Function>
auto for_python(Function function) {
  return across_border<rethrow_for_python>(function);
}
template <typename Function>
auto for_ranks(Function function) {
  return across_border<rethrow_for_ranks>(function);
}

}  // namespace flashstep::bindings
