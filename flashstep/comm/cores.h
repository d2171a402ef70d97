// The cores of a machine, which its ranks share.
#pragma once

#include "flashstep/detail/environment.h"

namespace flashstep {

// From now on this process computes with its share of them, unless OMP_NUM_THREADS says otherwise.
void share_cores(const Environment& environment);

}  // namespace flashstep
