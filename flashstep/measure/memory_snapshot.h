// Memory traces as PyTorch's memory snapshots: the pickle that torch.cuda.memory._dump_snapshot()
// and LibTorch write, and pytorch.org/memory_viz and torch.cuda._memory_viz read. (The format:
// PyTorch's torch/csrc/cuda/memory_snapshot.cpp.)
//
// What the format has no place for stands in frames: a file "operator" or "range" has an operator
// or a path of ranges as its function. Kinds are categories, ranges external annotations.
#pragma once

#include <string>
#include <string_view>

#include "flashstep/measure/memory_trace.h"

namespace flashstep::measure {

// Shapes are lost. Memory addresses that touch, over the whole trace, are one segment.
std::string to_snapshot(const MemoryTrace& trace);

// Of a snapshot of several devices the one with most events. Categories become kinds (labelled;
// where there are none, all is kOther). Sizes are those asked for, not what the allocator rounded
// them up to. 100 MB take about a second and less than 1 GB of memory. UserError where the bytes
// are damaged or are no snapshot; `source` names them.
MemoryTrace read_snapshot(std::string_view bytes, const std::string& source);

}  // namespace flashstep::measure
