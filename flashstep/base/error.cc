#include "flashstep/error.h"

#include <cstring>

namespace flashstep {

void throw_errno(int error_number, const std::string& what) {
  throw MachineError(str(what, ": ", std::strerror(error_number)));
}

}  // namespace flashstep
