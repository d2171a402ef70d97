// The training step on this machine's CPU, beside PyTorch's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flashstep/measure/table.h"
#include "flashstep/model/config.h"

namespace flashstep::report {

struct StepCase {
  std::string name;
  ModelConfig model;
  int64_t batch_size;
};

// tiny (1.9 M parameters), mini (5.3 M), base (23 M); vocabulary 4096.
std::vector<StepCase> peer_step_cases();

struct BenchStepOptions {
  std::vector<StepCase> cases;
  std::vector<std::string> precisions = {"fp32", "bf16"};
  int64_t rounds = 5;                     // ours and the peers take turns so often
  int64_t steps = 3;                      // timed steps in a turn, after one untimed
  std::vector<std::string> peer_command;  // of scripts/peers/step_torch.py; empty: no peers
  bool eager = true, compiled = false;
  std::function<void(const std::string& line)> progress;  // what is being measured; may be empty
};

// One row a case and precision: tokens/s of ours (median of the steps; p10 and p90 of their time)
// and of each peer, ours over theirs, FLOP/s and their share of the matmul limit of the same dtype.
// A step zeroes gradients, runs forward and backward, clips to norm 1 and updates with AdamW. In
// the same run the gradient of one sequence is held against the reference operations in float64:
// "gradient error" is the norm of the difference over the norm. A peer that cannot run leaves its
// cells empty and a note; a wrong gradient throws MachineError.
measure::Table bench_step(const BenchStepOptions& options);

}  // namespace flashstep::report
