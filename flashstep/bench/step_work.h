// What a traced step spent its time on, and how much memory it had when.
#pragma once

#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/schema.h"
#include "flashstep/measure/memory_trace.h"
#include "flashstep/trace/trace_events.h"
#include "flashstep/trace/work_class.h"

namespace flashstep::tools {

// Facts in seconds: "class matmul", ...: on a GPU of its kernels and copies, whose classes may run
// at the same time; on a CPU of the operators of all threads, each without those that it called.
// "traced": from the first to the last. On a GPU "exposed": communication beside which nothing
// computes, and "idle": nothing runs.
void put_step_work(const TraceEvents& trace, Record& record);
// Columns of what some record has, with its power ("watts") and "clock".
Schema step_work_schema(const Records& records);

// Bytes of tensors over the time of the range "step".
void put_step_memory(const measure::MemoryTrace& trace, Record& record);
// A picture for each case that has some, a line for each implementation.
std::vector<NamedPicture> step_memory_pictures(const Records& records);

}  // namespace flashstep::tools
