// One case of `flashstep bench attention`: all contestants on the same inputs, in turns.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "flashstep/report/bench_attention_results.h"
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

// A result for each pass. Every contestant is first held against the float64 reference, then they
// take turns. What a contestant throws becomes its `trouble`. Throws Interrupted when a signal
// came.
std::vector<AttentionResult> race(const AttentionCase& c, const std::vector<AttentionPass>& passes,
                                  const std::vector<AttentionContestant>& contestants,
                                  const at::Device& device, const RaceOptions& options);

// Runs `work`. What it throws becomes "OOM", "refused: ...", "failed: ..."; empty: it went well.
// Interrupted passes through.
std::string trouble_of(const std::function<void()>& work);

// Sets of inputs that calls take in turn, so that together they are twice the last cache: where a
// case is so large that its inputs come from memory in a program, they do here too.
std::vector<AttentionInputs> rotated_inputs(const AttentionCase& c, const at::Device& device,
                                            uint64_t seed);

}  // namespace flashstep::report
