// The results of `flashstep bench attention` as tables, sentences and pictures.
#pragma once

#include <string>
#include <vector>

#include "flashstep/report/bench_attention_race.h"
#include "flashstep/report/bench_report.h"

namespace flashstep::report {

// One line a case and pass: our_run(), its share of the limit, the best peer and every contestant's
// time.
measure::Table attention_table(const std::vector<AttentionResult>& results);

// One line a contestant, case and pass, with all that was measured.
measure::Table attention_runs_table(const std::vector<AttentionResult>& results);

// What the results say of the bars that are set for this preset, each kept or BROKEN; wrong
// elements; how close "auto" comes to the fastest implementation that flashstep can call.
std::vector<std::string> attention_verdict(const std::string& preset,
                                           const std::vector<AttentionResult>& results);

// Why cells are empty: a sentence for each contestant and reason.
std::vector<std::string> attention_troubles(const std::vector<AttentionResult>& results);

// Time and TFLOP/s against N for each dtype and pass (at head dim 64, or the largest there is), and
// heat maps of x the best peer; for "sweep" grouped bars, a heat map and time against N M.
std::vector<NamedPicture> attention_pictures(const std::string& preset,
                                             const std::vector<AttentionResult>& results,
                                             const std::string& footnote);

// The run of this name; null without one.
const AttentionRun* find_run(const AttentionResult& result, const std::string& contestant);
// The fastest run with a time of ours (`ours`) or of the peers; null without one.
const AttentionRun* fastest(const AttentionResult& result, bool ours);
// What stands for ours: the device's own kernel ("cuda", "cpu"); without it the first of ours.
// ("auto" may take a peer's, whose time says nothing about ours.)
const AttentionRun* our_run(const AttentionResult& result);

}  // namespace flashstep::report
