// One case of `flashstep bench attention`: all contestants on the same inputs, in turns.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "flashstep/report/bench_attention_rivals.h"

namespace flashstep::report {

struct RaceOptions {
  double cell_seconds = 0.03;  // timed, of one contestant in one pass, if that makes enough samples
  double warmup_seconds = 0.003;
  int64_t turns = 3;
  int64_t least_samples = 3, most_samples = 60;
  double sample_seconds = 1e-4;       // a sample is as many calls as take this long
  int64_t warmup_calls = 0;           // with `calls`: untimed
  int64_t calls = 0;                  // > 0: exactly so many samples of one call each
  double graph_below_seconds = 5e-4;  // longer calls hide their launching: no graph
};

struct AttentionRun {
  std::string contestant;
  bool ours = false;
  std::vector<double> seconds;        // a call
  std::vector<double> graph_seconds;  // a call replayed from a CUDA graph
  // Why there are no times: "OOM", "refused", "failed", each followed by ": " and more, or nothing.
  std::string trouble;
  std::string graph_trouble;     // why there is no graph where one was tried
  std::optional<int64_t> wrong;  // elements, of those that were checked
  double worst = 0;              // the largest error, in tolerances

  double median() const;        // NaN without times
  double graph_median() const;  // NaN without a graph
};

struct AttentionResult {
  AttentionCase c;
  AttentionPass pass;
  std::vector<AttentionRun> runs;  // in the order of the contestants
  double limit_seconds = 0;        // no machine of these limits is faster
  int64_t checked_heads = 0, all_heads = 0;
  std::string chosen = {};  // the implementation that "auto" takes
};

// A result for each pass. Every contestant is first held against the float64 reference, then they
// take turns. What a contestant throws becomes its `trouble`. Throws Interrupted when a signal
// came.
std::vector<AttentionResult> race(const AttentionCase& c, const std::vector<AttentionPass>& passes,
                                  const std::vector<AttentionContestant>& contestants,
                                  const at::Device& device, const RaceOptions& options);

// Seconds that the case takes at least: its FLOPs at the matmul limit of its dtype or its bytes at
// the memory limit, whichever is longer.
double limit_seconds(const AttentionCase& c, AttentionPass pass, const at::Device& device);

// Runs `work`. What it throws becomes "OOM", "refused: ...", "failed: ..."; empty: it went well.
// Interrupted passes through.
std::string trouble_of(const std::function<void()>& work);

// Sets of inputs that calls take in turn, so that together they are twice the last cache: where a
// case is so large that its inputs come from memory in a program, they do here too.
std::vector<AttentionInputs> rotated_inputs(const AttentionCase& c, const at::Device& device,
                                            uint64_t seed);

}  // namespace flashstep::report
