// One training step of a model that no single GPU holds, as the course's leaderboard has it: fully
// sharded, on random tokens, with what recomputation its plan finds room for. Beside it the same
// step with float32 weights, and PyTorch's FSDP2.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashstep/report/benchmark.h"
#include "flashstep/train/config.h"

namespace flashstep::report {

struct LeaderboardCase {
  std::string model = "8B";    // a named size, or "1600/6400/48/25": d_model/d_ff/layers/heads
  int64_t vocab_size = 0;      // 0: the named size's
  int64_t context_length = 0;  // 0: the named size's
  int64_t batch_size = 1;      // rows of one rank
  int64_t ranks = 2;
  std::string device = "cpu";
  void visit(FieldVisitor& visitor);
};

// The task of the ranks.
struct LeaderboardPlan {
  LeaderboardCase c;
  std::vector<std::string> contestants;  // leaderboard_names()
  int64_t warmup = 5, steps = 5;         // steps that are launched and recorded; timed ones
  double memory_gigabytes = 145;         // of a GPU, 10^9 bytes, that the job may use, all counted
  void visit(FieldVisitor& visitor);
};

struct BenchLeaderboardOptions {
  std::vector<LeaderboardCase> cases;
  LeaderboardPlan plan;               // its case is replaced by each of the cases
  std::vector<std::string> baseline;  // a command that runs fsdp_torch.py on ranks; empty: none
  TellProgress progress = {};
};

// "bf16 weights": as the handout's job has it: weights and moments in bf16, no clipping, updates in
// backward. "fp32 weights": float32 weights and moments, clipping. "reference": one step whose
// stream and gradients are float32, too, launched kernel by kernel, with other attention kernels,
// every block computed twice; the others are checked against its loss, gradients and weights.
std::vector<std::string> leaderboard_names();
Config leaderboard_config(const LeaderboardCase& c, const std::string& contestant);

// UserError for another year than "2026".
BenchLeaderboardOptions leaderboard_preset(const std::string& year);

BenchReport bench_leaderboard(const BenchLeaderboardOptions& options);
void bench_leaderboard_rank(const std::string& task);

}  // namespace flashstep::report
