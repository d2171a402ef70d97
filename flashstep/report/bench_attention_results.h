// What was measured of contestants in `flashstep bench attention`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashstep/report/bench_attention_cases.h"

namespace flashstep::report {

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

// The run of this name; null without one.
const AttentionRun* find_run(const AttentionResult& result, const std::string& contestant);
// The fastest run with a time of ours (`ours`) or of the peers; null without one.
const AttentionRun* fastest(const AttentionResult& result, bool ours);
// What stands for ours: the device's own kernel ("cuda", "cpu"); without it the first of ours.
// ("auto" may take a peer's, whose time says nothing about ours.)
const AttentionRun* our_run(const AttentionResult& result);

// The first failure of ours, but for want of memory: for the report's. Empty: there is none. (What
// a peer cannot do is its own affair.)
std::string failure_of_ours(const std::vector<AttentionResult>& results);

// Seconds that the case takes at least: its FLOPs at the matmul limit of its dtype or its bytes at
// the memory limit of the device ("cpu", "cuda"), whichever is longer.
double limit_seconds(const AttentionCase& c, AttentionPass pass, const std::string& device);

}  // namespace flashstep::report
