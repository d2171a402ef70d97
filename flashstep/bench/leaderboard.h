// One training step of a model that no single GPU holds, as the course's leaderboard has it: fully
// sharded, on random tokens, with what recomputation its plan finds room for. Beside it the same
// step with float32 weights, and PyTorch's FSDP2.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/parallel_case.h"
#include "flashstep/train/config.h"

namespace flashstep::tools {

// "bf16 weights": as the handout's job has it: weights and moments in bf16, no clipping, updates in
// backward. "fp32 weights": float32 weights and moments, clipping. "reference": one step whose
// stream and gradients are float32, too, launched kernel by kernel, with other attention kernels,
// every block computed twice; the others are checked against its loss, gradients and weights.
std::vector<std::string> leaderboard_names();

// The task of the ranks, which are started anew for each implementation: what it holds is its own.
struct LeaderboardPlan {
  ParallelCase c;
  std::vector<std::string> implementations = leaderboard_names();
  int64_t warmup = 5, steps = 5;  // steps that are launched and recorded; timed ones
  double memory_gigabytes = 145;  // of a GPU, 10^9 bytes, that the job may use, all counted
  std::string samples;            // directory of the reference's; made for the run
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LeaderboardPlan, c, implementations, warmup, steps,
                                   memory_gigabytes, samples)

struct BenchLeaderboardOptions {
  ParallelAxes axes;
  LeaderboardPlan plan;               // its case is replaced by each of the axes'
  std::vector<std::string> baseline;  // a command that runs fsdp_torch.py on ranks; empty: none
  TellProgress progress = {};
};

// From what the reference computes otherwise: attention by other kernels, stream and gradients in
// float32, where bf16 keeps 8 bits and moments are rounded by chance. Weights: a share of what
// rounding and one update may make.
inline constexpr double kMostLossError = 0.01, kMostGradientError = 0.05, kMostWeightError = 1;
Config leaderboard_config(const ParallelCase& c, const std::string& implementation);

BenchReport bench_leaderboard(const BenchLeaderboardOptions& options);
void bench_leaderboard_rank(const std::string& task);

}  // namespace flashstep::tools
