// The results of `flashstep bench attention` as tables, sentences and pictures.
#pragma once

#include <string>
#include <vector>

#include "flashstep/report/bench_attention_results.h"
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

}  // namespace flashstep::report
