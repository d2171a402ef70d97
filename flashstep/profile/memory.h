// Where the memory of a model goes: every allocation of a pass by what it holds, as tables, a
// picture over time, and a snapshot for pytorch.org/memory_viz.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/task.h"
#include "flashstep/bench/workload.h"
#include "flashstep/measure/area_chart.h"
#include "flashstep/measure/memory_trace.h"

namespace flashstep::tools {

struct MemoryOptions {
  WorkloadAxes axes = {.modes = {"forward", "step"}};
  int64_t warmup = 1;     // passes before the recorded one: AdamW's state comes with the first
  int64_t largest = 15;   // lines a case in the table of the largest allocations
  bool reduce = true;     // beside a size that needs too much: as many of its layers as fit
  std::string directory;  // for the pictures over time and the snapshots; empty: none are made
  TellProgress progress = {};
};

// Tables: the peaks, and below them "largest", "block", "operators" and "residual". Files of the
// directory: memory_timeline_CASE.svg and CASE/memory_snapshot.pickle. Where memory is too small
// the cells say so and the rest is measured; so where a process fails, which becomes the report's
// failure. UserError for what cannot be measured at all.
BenchReport memory_report(const MemoryOptions& options);

// The same of a snapshot that PyTorch or flashstep wrote: its peak, its largest allocations, and
// (with a directory) the picture. UserError where the file is none.
BenchReport snapshot_report(const std::filesystem::path& snapshot, int64_t largest,
                            const std::string& directory);

// ---- Inside

// The tables of a trace, of all its events.
BenchReport memory_trace_report(const measure::MemoryTrace& trace, const std::string& name,
                                int64_t largest);

struct MemoryTask {
  Workload workload;
  int64_t warmup = 1, largest = 15;
  std::string directory;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryTask, workload, warmup, largest, directory)

// Records of one pass, without a key: its own (no implementation), and "allocation" and "saved": a
// line of the tables each. Facts of the pass, in bytes: "peak", what each kind has of it (by its
// name), "forward peak", "backward peak", "optimizer peak" (0: there was no such pass), "on the
// device" (the peak of LibTorch's allocator on a GPU, or what was resident), of the block in the
// middle "saved" (allocations that its forward pass leaves for backward) and "block gradients", and
// "residual", a tensor of the residual stream as it came; "peak in", the range of the peak.
// Measures in this process, and writes the case's files.
std::vector<Record> measure_memory(const MemoryTask& task);
// In a process that memory_report() has started.
void memory_process(const std::string& task);

std::string case_name(const Workload& workload);  // for files: "small_c128_b4_step_fp32_auto"

// The greatest allocations that were there at any time of the window, most bytes in one first.
// Those that differ in nothing but when they were made, and in which block, are one record: "bytes"
// (of one), "count", "kind", "shape", "range", "made by", "source".
std::vector<Record> largest_allocations(const measure::MemoryTrace& trace,
                                        measure::EventRange window, int64_t count);
// Allocations made in these ranges that are kActivations, by who made them: "operator", "saved",
// "share" (%), "place"; most first.
std::vector<Record> saved_by_operator(const measure::MemoryTrace& trace, const std::string& ranges);

// Memory by kind over the window's time, with its passes marked.
measure::AreaChart memory_timeline(const measure::MemoryTrace& trace, measure::EventRange window,
                                   const std::string& title, const std::string& footnote);

// memory_table.cc
// What follows from the workload: the key, and what formulas say. `whole_layers`: of the size that
// did not fit, in whose place this stands; or 0.
void describe_records(const Workload& workload, int64_t whole_layers, std::vector<Record>& records);
Benchmark memory_benchmark(int64_t warmup);
Schema allocation_schema(bool with_shape);

}  // namespace flashstep::tools
