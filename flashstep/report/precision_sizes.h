// The parts of precision_sizes(): what it measures of a model, and the tables made of that.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "flashstep/report/bench_report.h"
#include "flashstep/report/precision.h"
#include "flashstep/report/workload.h"

namespace flashstep::report {

constexpr const char* kPrecisions[] = {"fp32", "bf16"};

struct PrecisionTimes {  // seconds, a value a pass
  std::vector<double> forward, backward;
};

struct SizeResult {
  std::string name;
  double parameters = 0;
  std::array<PrecisionTimes, 2> times = {};  // of kPrecisions
  double loss_error = 0, logits_error = 0, gradient_error = 0;
  std::string failure = {};  // why there is nothing

  bool has_times() const { return !times[1].backward.empty(); }
};

// Fills in a size's times and errors.
using MeasureSize = std::function<void(SizeResult&, const Workload&, const PrecisionSizesOptions&)>;
// As precision_sizes(), with what measures.
BenchReport precision_sizes_by(const MeasureSize& measure, const PrecisionSizesOptions& options);

// Table, runs, a picture of the gain by size (from two sizes on), and a verdict among the notes.
BenchReport precision_sizes_report(const std::vector<SizeResult>& results,
                                   const PrecisionSizesOptions& options);

}  // namespace flashstep::report
