// For processors that are not x86.
#include "flashstep/products/cpu/packed.h"

namespace flashstep::packed {

bool is_available() { return false; }
void multiply(const Product&, float*) {}

}  // namespace flashstep::packed
