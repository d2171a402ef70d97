// The machine's limits (measure/limits.h) as a table.
#pragma once

#include <vector>

#include "flashstep/measure/limits.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/table.h"

namespace flashstep::tools {

// A line a limit, beside the data sheet where there is one; `all`: those of each device.
measure::Table limits_table(const measure::Machine& machine,
                            const std::vector<measure::Limits>& all);

}  // namespace flashstep::tools
