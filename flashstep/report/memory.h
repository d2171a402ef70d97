// Where the memory of a model goes: every allocation of a pass by what it holds, as tables, a
// picture over time, and a snapshot for pytorch.org/memory_viz.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "flashstep/measure/area_chart.h"
#include "flashstep/measure/memory_trace.h"
#include "flashstep/report/bench_report.h"
#include "flashstep/report/workload.h"

namespace flashstep::report {

struct MemoryOptions {
  WorkloadAxes axes;
  int64_t warmup = 1;     // passes before the recorded one: AdamW's state comes with the first
  int64_t largest = 15;   // lines a case in the table of the largest allocations
  bool reduce = true;     // beside a size that needs too much: as many of its layers as fit
  std::string directory;  // for the pictures over time and the snapshots; empty: none are made
  std::string program = "/proc/self/exe";  // a flashstep: every case is a process of its own
  std::function<void(const std::string& line)> progress = {};  // may be empty
};

// "": small; "2024", "2025", "2026": the handout's size, contexts, modes and precisions. UserError
// for others.
MemoryOptions memory_preset(const std::string& name);

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

struct MemoryTask {
  Workload workload;
  int64_t warmup = 1, largest = 15;
  std::string directory;
  void visit(FieldVisitor& visitor);
};

// Allocations that differ in nothing but when they were made, and in which block.
struct LargeAllocation {
  int64_t bytes = 0, count = 0;  // of one, and how many
  std::string kind, shape, range, maker, source;
};

struct SavedByOperator {
  std::string maker;
  int64_t bytes = 0;
};

struct MemoryResult {
  MemoryTask task;
  std::string failure;       // "OOM: ...", "failed: ..."; empty when it was measured
  int64_t whole_layers = 0;  // of the size that did not fit, in whose place this stands; or 0

  measure::KindBytes at_peak = {};
  std::string peak_range;                         // in which it was reached
  int64_t forward = 0, backward = 0, update = 0;  // peaks of the passes; 0: there was none
  double device_bytes = 0;  // the peak of LibTorch's allocator, rounded blocks (GPU), or resident

  int64_t block = 0;        // the one in the middle; what follows is its
  int64_t block_saved = 0;  // bytes of allocations that its forward pass leaves for backward
  int64_t block_gradients = 0;
  std::vector<SavedByOperator> saved_by;  // most first
  int64_t residual_bytes = 0;             // of a tensor of the residual stream, as it came
  std::vector<LargeAllocation> largest;

  bool measured() const { return failure.empty(); }
};

// Measures in this process, and writes the case's files.
MemoryResult measure_memory(const MemoryTask& task);
// In a process that memory_report() has started.
void memory_process(const std::string& task);

std::string to_json(const MemoryResult& result);
MemoryResult memory_result_from_json(const std::string& json);

std::string case_name(const Workload& workload);  // for files: "small_c128_b4_step_fp32_auto"

// The greatest allocations that were there at any time of the window, most bytes in one first.
std::vector<LargeAllocation> largest_allocations(const measure::MemoryTrace& trace,
                                                 measure::EventRange window, int64_t count);
// Allocations made in these ranges that are kActivations, by who made them.
std::vector<SavedByOperator> saved_by_operator(const measure::MemoryTrace& trace,
                                               const std::string& ranges);

// Memory by kind over the window's time, with its passes marked.
measure::AreaChart memory_timeline(const measure::MemoryTrace& trace, measure::EventRange window,
                                   const std::string& title, const std::string& footnote);

// memory_table.cc
BenchReport memory_tables(const std::vector<MemoryResult>& results);

}  // namespace flashstep::report
