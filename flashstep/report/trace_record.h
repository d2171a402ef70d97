// A trace in a record: what ran when, and what that adds up to.
#pragma once

#include "flashstep/report/record.h"
#include "flashstep/report/trace.h"

namespace flashstep::report {

// Samples "compute spans", "copies spans", "communication spans" (begin, end, begin, ...; to a
// tenth of a microsecond); facts in seconds "computing", "communication", "exposed", "busy", the
// share "hidden" where anything is communicated, and "launches", of collectives. Or the fact "trace
// trouble": why there is nothing.
void put_trace(const Trace& trace, Record& record);
Trace trace_of(const Record& record);
bool is_traced(const Record& record);

}  // namespace flashstep::report
