// Attention beside its peers, on this machine's CPU or first GPU.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/bench/attention_cases.h"
#include "flashstep/bench/attention_implementations.h"
#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/turns.h"

namespace flashstep::tools {

struct BenchAttentionOptions {
  std::string preset = "handout";  // one of attention_presets(), or "grid"
  std::string device = "cpu";      // "cpu" or "cuda"
  AttentionFilter filter;
  std::vector<std::string> implementations;        // by name; empty: all
  std::vector<std::pair<int64_t, int64_t>> pairs;  // of "sweep": (N, M)
  int64_t warmup = 10, iterations = 50;            // of "sweep"
  int64_t passes = 100;                            // of "grid": forward, and backward
  bool quick = false;                              // one short turn a cell: to see that all runs
  std::vector<std::string> peer_command;           // of scripts/peers/attention_torch.py; or none
  TellProgress progress;
};

// `runs`: a line an implementation, case and pass; no pictures for "quick". UserError for an
// unknown preset, implementation or device, and where the filter leaves nothing.
BenchReport bench_attention(const BenchAttentionOptions& options);

// ---- Inside

// The device's implementations that the options ask for. UserError for those that nobody knows.
std::vector<AttentionCandidate> chosen_candidates(const BenchAttentionOptions& options,
                                                  const at::Device& device);

// The presets but "grid": a record a pass and implementation, with the samples "seconds" and
// "graph". Every implementation is first held against the float64 reference: the facts "wrong"
// (elements) and "error" (the largest, in tolerances).
std::vector<Record> measure_attention(const AttentionCase& c,
                                      const std::vector<std::string>& passes,
                                      const std::vector<AttentionCandidate>& implementations,
                                      const at::Device& device, const TurnOptions& options);

// The record that stands for ours in its case: of the device's own kernel ("cuda", "cpu"), without
// it the first of ours. ("auto" may take a peer's, whose time says nothing about ours.)
const Record* our_record(const Record& of_case, const Records& all);

inline double length_of(const Record& r) { return r.number("N"); }

// A line a case: of ours; of the first where there is none of ours.
bool is_row(const Record& r, const Records& all);
// Of those of the same case that are not ours; null without one.
const Record* best_peer(const Record& of_case, const Records& all, const std::string& series);
// Its time over this one's; NaN without both.
double times_best_peer(const Record& r, const Records& all, const std::string& series = "seconds");
// The cell of ours; an empty one of peers.
CellOf ours(const CellOf& cell);

Benchmark attention_benchmark(const BenchAttentionOptions& options);

// Time and TFLOP/s against N for each dtype and pass (at head dim 64, or the largest there is), and
// heat maps of x the best peer; for "sweep" grouped bars, a heat map and time against N M.
std::vector<NamedPicture> attention_pictures(const std::string& preset, const Records& records);

// The preset "grid": time and memory of single passes, batch 8 and no heads, head dims 16 to 128 by
// lengths 256 to 16384, `options.passes` a cell (fewer on a CPU, where a cell has ten seconds).
// When the naive formula fits everywhere, N is doubled until it does not. Samples "forward" and
// "backward"; facts in bytes of tensors beyond the inputs (on a GPU and a CPU; not of another
// process): "forward peak", "before backward", "backward peak", "after backward".
BenchReport bench_attention_grid(const BenchAttentionOptions& options);
// A record an implementation.
std::vector<Record> measure_grid_case(const AttentionCase& c, const at::Device& device,
                                      const std::vector<AttentionCandidate>& implementations,
                                      int64_t passes);

// Of the first cell of naive that was out of memory: which matrices it needed, from what the
// largest one that fitted held. `memory_bytes`: of the device. Empty where all fitted.
std::vector<std::string> grid_accounting(const Records& records, double memory_bytes);

// Seconds that the case takes at least: its FLOPs at the matmul limit of its dtype or its bytes at
// the memory limit of the device ("cpu", "cuda"), whichever is longer.
double limit_seconds(const AttentionCase& c, const std::string& pass, const std::string& device);

}  // namespace flashstep::tools
