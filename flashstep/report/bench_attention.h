// Attention beside its peers, on this machine's CPU or first GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/measure/table.h"
#include "flashstep/report/bench_attention_cases.h"
#include "flashstep/report/bench_report.h"

namespace flashstep::report {

struct BenchAttentionOptions {
  std::string preset = "handout";  // one of attention_presets(), or "grid"
  std::string device = "cpu";      // "cpu" or "cuda"
  AttentionFilter filter;
  std::vector<std::string> contestants;            // by name; empty: all
  std::vector<std::pair<int64_t, int64_t>> pairs;  // of "sweep": (N, M)
  int64_t warmup = 10, iterations = 50;            // of "sweep"
  int64_t passes = 100;                            // of "grid": forward, and backward
  bool quick = false;                              // one short turn a cell: to see that all runs
  std::vector<std::string> peer_command;           // of scripts/peers/attention_torch.py; or none
  std::function<void(uint64_t done, uint64_t total, const std::string& note)> progress;
};

// `runs`: a line a contestant, case and pass; no pictures for "quick".
using AttentionReport = BenchReport;

// Runs a preset. A signal (while a SignalGuard is alive) ends it after the call that is running.
// UserError for an unknown preset, contestant or device, and where the filter leaves nothing.
AttentionReport bench_attention(const BenchAttentionOptions& options);

}  // namespace flashstep::report
