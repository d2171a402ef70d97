// A trace added up: time and calls of every kernel (on a CPU: operator) by pass, range and class,
// FLOPs and bytes beside them. Torch-free.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "flashstep/trace/trace_attribution.h"

namespace flashstep::tools {

struct WorkSums {
  double seconds = 0, flops = 0, bytes = 0;
  int64_t calls = 0;
  WorkSums& operator+=(const WorkSums& other);
};

// One kernel (or operator) in one range and pass, over all steps: seconds and calls. FLOPs and
// bytes, which belong to operators, stand in cells of a class without a name.
struct ProfileCell {
  Pass pass;
  uint32_t range;  // in ProfileSums::ranges
  WorkClass work_class;
  std::string name;
  WorkSums sums;
};

struct PassSums {
  double host_seconds = 0;  // in the pass's range on the host
  double busy_seconds = 0;  // at least one kernel runs; on a CPU: an operator of any class but host
};

struct ProfileSums {
  bool on_gpu = false;
  int64_t steps = 1;        // recorded ones; everything below is the sum over them
  int64_t step_ranges = 0;  // that began in steps
  // Of the steps on the host, the device waited for; without such ranges from the first piece of
  // work to the last.
  double wall_seconds = 0;
  double busy_seconds = 0;  // of it, as in PassSums
  RangeTree ranges;
  std::vector<ProfileCell> cells;
  std::array<PassSums, kPasses> passes;
  std::vector<std::array<double, kPasses>> block_seconds;  // by block and pass
};

ProfileSums sums_of(const TraceEvents& trace, const Attribution& attribution);
ProfileSums sums_of(const TraceEvents& trace);

// Which cells to add up.
struct CellFilter {
  std::vector<Pass> passes = {};        // empty: all
  std::vector<WorkClass> classes = {};  // empty: all
  std::string range = {};               // in a range of that name, at any depth; empty: anywhere
};
WorkSums add_up(const ProfileSums& sums, const CellFilter& filter);

// Cells of one name, by pass; those with the most time first.
struct NameSums {
  std::string name;
  WorkClass work_class;
  std::array<WorkSums, kPasses> passes;
  WorkSums total;
};
std::vector<NameSums> by_name(const ProfileSums& sums);

// The range's own time and that of the ranges in it, by pass; parents before children.
struct RangeSums {
  uint32_t range;
  std::array<WorkSums, kPasses> passes;
};
std::vector<RangeSums> by_range(const ProfileSums& sums);

// Seconds of work that no rule knows, as a share of all; and the names, longest first.
double unclassified_share(const ProfileSums& sums);
std::vector<std::string> unclassified_names(const ProfileSums& sums);

}  // namespace flashstep::tools
