#include "flashstep/bindings/border.h"

#include <c10/util/Exception.h>

#include "flashstep/error.h"

namespace flashstep::bindings {

void rethrow_for_python() {
  try {
    throw;
  } catch (const UserError& error) {
    C10_THROW_ERROR(ValueError, error.what());
  } catch (const LostRank& error) {
    C10_THROW_ERROR(DistBackendError, error.what());
  }
}

void rethrow_for_ranks() {
  try {
    throw;
  } catch (const MachineError& error) {
    C10_THROW_ERROR(DistBackendError, error.what());
  } catch (...) {
    rethrow_for_python();
  }
}

}  // namespace flashstep::bindings
