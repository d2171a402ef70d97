// Every fused operator beside PyTorch's own, eager and through torch.compile: time, the least
// traffic it needs, and how near that comes to the machine's limit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashstep/report/benchmark.h"

namespace flashstep::report {

struct BenchOpsOptions {
  int64_t rows = 2048;  // tokens
  int64_t width = 768;  // d_model; d_ff is 8/3 of it
  int64_t vocab = 10'000;
  std::vector<std::string> ops = {};              // empty: all of op_names()
  std::vector<std::string> dtypes = {"fp32"};     // or "bf16"
  std::vector<std::string> implementations = {};  // empty: "flashstep", "eager", "compiled"
  std::string device = "cpu";
  double cell_seconds = 0.3;  // of an implementation in a case
  int64_t turns = 3;
  std::vector<std::string> peer_command = {};  // that runs scripts/peers/ops_torch.py
  TellProgress progress = {};
};

std::vector<std::string> op_names();

// A line an operator, pass and implementation. An error of ours beyond twice PyTorch's in the same
// dtype is the report's failure.
BenchReport bench_ops(const BenchOpsOptions& options);

}  // namespace flashstep::report
