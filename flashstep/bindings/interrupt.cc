#include "flashstep/bindings/interrupt.h"

#include <dlfcn.h>

namespace flashstep::bindings {
namespace {

// The interpreter that loaded us: its C functions are found by name, so that one library serves all
// versions.
template <typename Function>
Function of_interpreter(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

bool python_wants_to_stop() {
  static const auto lock = of_interpreter<int (*)()>("PyGILState_Ensure");
  static const auto unlock = of_interpreter<void (*)(int)>("PyGILState_Release");
  static const auto run_handlers = of_interpreter<int (*)()>("PyErr_CheckSignals");
  static const auto clear = of_interpreter<void (*)()>("PyErr_Clear");
  static const auto raise_again = of_interpreter<void (*)()>("PyErr_SetInterrupt");
  if (!lock || !unlock || !run_handlers || !clear || !raise_again) return false;
  const int state = lock();
  const bool stops = run_handlers() != 0;
  if (stops) {
    clear();
    raise_again();
  }
  unlock(state);
  return stops;
}

}  // namespace flashstep::bindings
