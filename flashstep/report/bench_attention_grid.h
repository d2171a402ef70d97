// The preset "grid" of `flashstep bench attention`: time and memory of single passes, batch 8 and
// no heads, head dims 16 to 128 by lengths 256 to 16384, and what does not fit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "flashstep/report/bench_attention.h"

namespace flashstep::report {

// One contestant at one head dim and length.
struct GridCell {
  std::string contestant;
  AttentionCase c;
  std::vector<double> forward_seconds = {},
                      backward_seconds = {};  // single passes, each waited for
  // Bytes of tensors beyond the inputs (on a GPU; 0 elsewhere): the most during the forward pass,
  // what is there before backward, the most during it, what is left when its graph is gone.
  double forward_peak = 0, before_backward = 0, backward_peak = 0, after_backward = 0;
  std::string trouble = {};  // as AttentionRun's
  std::optional<int64_t> wrong = {};
};

// `options.passes` forward and backward passes a cell (fewer on a CPU, where a cell has ten
// seconds). When the naive formula fits everywhere, N is doubled until it does not.
AttentionReport bench_attention_grid(const BenchAttentionOptions& options);

// The results: a line a cell, what to know of them, how ours stand (the last sentence), and curves.
measure::Table grid_table(const std::vector<GridCell>& cells, const std::string& device);
std::vector<std::string> grid_notes(const std::vector<GridCell>& cells);
std::string grid_verdict(const std::vector<GridCell>& cells);
std::vector<NamedPicture> grid_pictures(const std::vector<GridCell>& cells);

// Whether it is a cell of the formula that did not fit.
bool out_of_memory(const GridCell& cell);

// Of the first cell of naive that was out of memory: which matrices it needed, from what the
// largest one that fitted held. `memory_bytes`: of the device. Empty where all fitted.
std::vector<std::string> grid_accounting(const std::vector<GridCell>& cells, double memory_bytes);

}  // namespace flashstep::report
