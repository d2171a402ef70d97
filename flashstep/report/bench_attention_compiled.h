// PyTorch's compiled formula, in a Python process of its own, as an implementation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "flashstep/report/bench_attention_implementations.h"

namespace flashstep::report {

// "compiled": scripts/peers/attention_torch.py, started by `command`. Where it does not start, or
// ends, it refuses every case. It draws the inputs by itself: that they are the same is seen in its
// results, which are checked as all others are.
AttentionCandidate compiled_candidate(const std::vector<std::string>& command);

}  // namespace flashstep::report
