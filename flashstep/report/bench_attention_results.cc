#include "flashstep/report/bench_attention_results.h"

#include <algorithm>

#include "flashstep/base/text.h"
#include "flashstep/measure/limits.h"
#include "flashstep/measure/stats.h"

namespace flashstep::report {

double AttentionRun::median() const { return measure::median(seconds); }
double AttentionRun::graph_median() const { return measure::median(graph_seconds); }

const AttentionRun* find_run(const AttentionResult& result, const std::string& contestant) {
  for (const auto& run : result.runs) {
    if (run.contestant == contestant) return &run;
  }
  return nullptr;
}

const AttentionRun* fastest(const AttentionResult& result, bool ours) {
  const AttentionRun* best = nullptr;
  for (const auto& run : result.runs) {
    if (run.ours != ours || run.seconds.empty()) continue;
    if (best == nullptr || run.median() < best->median()) best = &run;
  }
  return best;
}

const AttentionRun* our_run(const AttentionResult& result) {
  for (const char* name : {"cuda", "cpu"}) {
    if (const AttentionRun* run = find_run(result, name)) return run;
  }
  for (const auto& run : result.runs) {
    if (run.ours) return &run;
  }
  return nullptr;
}

std::string failure_of_ours(const std::vector<AttentionResult>& results) {
  for (const AttentionResult& result : results) {
    for (const AttentionRun& run : result.runs) {
      if (run.ours && run.trouble.starts_with("failed"))
        return str("[bench attention] ", describe(result.c), ", ", run.contestant, " ",
                   run.trouble);
    }
  }
  return "";
}

double limit_seconds(const AttentionCase& c, AttentionPass pass, const std::string& device) {
  return std::max(pass_flops(c, pass) / measure::matmul_limit_flops(device, c.dtype),
                  pass_bytes(c, pass) / measure::memory_limit_bytes_per_s(device));
}

}  // namespace flashstep::report
