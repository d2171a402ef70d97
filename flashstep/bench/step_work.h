// What a traced step spent its time on.
#pragma once

#include <array>

#include "flashstep/bench/schema.h"
#include "flashstep/trace/trace_events.h"
#include "flashstep/trace/work_class.h"

namespace flashstep::tools {

// Seconds. On a GPU of its kernels and copies, whose classes may run at the same time; on a CPU of
// the operators of all threads, each without those that it called.
struct StepWork {
  std::array<double, kWorkClasses> of_class{};
  double exposed = 0;  // on a GPU: communication beside which nothing computes
  double idle = 0;     // on a GPU: nothing runs between the first and the last
  double traced = 0;   // from the first to the last
  bool of_device = false;
};

StepWork step_work(const TraceEvents& trace);

void put_step_work(const StepWork& work, Record& record);
// Columns of what some record has, with its power ("watts") and "clock".
Schema step_work_schema(const Records& records);

}  // namespace flashstep::tools
