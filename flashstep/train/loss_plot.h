// The loss curves of runs, from their metrics.jsonl.
#pragma once

#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "flashstep/measure/plot.h"

namespace flashstep {

// What a run has measured, step by step. The lines of metrics.jsonl need not have every field.
struct RunCurves {
  std::string name;                           // of the run directory
  std::vector<double> steps, values;          // of the plotted field
  std::vector<double> val_steps, val_losses;  // held-out loss, where the field is the loss
  double bigram_loss = std::numeric_limits<double>::quiet_NaN();  // the last one recorded
};

// Parses the lines of metrics.jsonl. `null` (a loss that was not finite) is a gap in the curve. A
// torn last line, as a killed process leaves it, is ignored; anything else that is no JSON object
// with a number "step" is a UserError naming `source` and the line.
RunCurves parse_curves(std::string_view lines, const std::string& field, const std::string& source);

// The mean over a window around each point, a 50th of the curve wide. It narrows towards the
// beginning, where losses fall too fast to be averaged; at the end it keeps what lies behind it, so
// that the last value is no single batch. Gaps stay gaps.
std::vector<double> smoothed(const std::vector<double>& values);

// Training values of every run, raw and smoothed, with held-out losses and the bigram's as a line.
measure::Plot curves_plot(const std::vector<RunCurves>& runs, const std::string& field);

// RUN/metrics.jsonl of every run over each other. UserError if a run has none or it is damaged.
measure::Plot plot_runs(const std::vector<std::filesystem::path>& runs, const std::string& field);

// Draws the loss of the runs to PATH_STEM.svg and PATH_STEM.png. A finite `bigram_loss` stands in
// for one that the runs did not record.
measure::WrittenPlot draw_loss(const std::vector<std::filesystem::path>& runs,
                               const std::filesystem::path& path_stem,
                               double bigram_loss = std::numeric_limits<double>::quiet_NaN());

}  // namespace flashstep
