// A trace in a line that a rank hands over.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "flashstep/report/trace.h"

namespace flashstep::report {

// {"compute": [begin, end, begin, ...], "copies": ..., "communication": ..., "trace_trouble": ""},
// times to a tenth of a microsecond.
nlohmann::json json_of(const Trace& trace);
// Of what has these keys, and maybe others.
Trace trace_of(const nlohmann::json& json);

}  // namespace flashstep::report
