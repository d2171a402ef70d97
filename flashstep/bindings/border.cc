#include "flashstep/bindings/border.h"

#include <c10/util/Exception.h>

#include "flashstep/bindings/interrupt.h"
#include "flashstep/error.h"

namespace flashstep::bindings {

void rethrow_for_python() {
  rethrow_what_python_raised();
  try {
    throw;
  } catch (const UserError& error) {
    C10_THROW_ERROR(ValueError, error.what());
  } catch (const LostRank& error) {
    C10_THROW_ERROR(DistBackendError, error.what());
  }
}

void rethrow_for_ranks() {
  rethrow_what_python_raised();
  try {
    throw;
  } catch (const MachineError& error) {
    C10_THROW_ERROR(DistBackendError, error.what());
  } catch (...) {
    rethrow_for_python();
  }
}

}  // namespace flashstep::bindings
