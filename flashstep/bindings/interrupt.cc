#include "flashstep/bindings/interrupt.h"

#include <exception>
#include <memory>
#include <utility>

#include <c10/core/DispatchKeySet.h>
#include <c10/util/Exception.h>

#include "flashstep/bindings/traced.h"

namespace flashstep::bindings {
namespace {

// Of this thread. Not destroyed at its end, when the interpreter may be gone.
thread_local std::exception_ptr* raised = nullptr;

}  // namespace

bool python_wants_to_stop() {
  static const auto run_handlers = operator_named<void()>("flashstep::run_handlers");
  try {
    // The kernel itself, so that neither profiles nor modes see a call.
    run_handlers.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU));
    return false;
  } catch (const c10::Error&) {
    return false;  // Python ends, and has taken its function back
  } catch (...) {
    if (!raised) raised = new std::exception_ptr;
    *raised = std::current_exception();
    return true;
  }
}

void rethrow_what_python_raised() {
  const std::unique_ptr<std::exception_ptr> own(std::exchange(raised, nullptr));
  if (own) std::rethrow_exception(*own);
}

}  // namespace flashstep::bindings
