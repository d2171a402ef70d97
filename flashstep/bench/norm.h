// RMSNorm by our operation, by its formula, by LibTorch and through torch.compile, beside
// LayerNorm: how near each comes to the speed of memory, which is all that a norm waits for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashstep/bench/benchmark.h"

namespace flashstep::tools {

struct BenchNormOptions {
  int64_t rows = 50'000;
  std::vector<int64_t> widths = {1024, 2048, 4096, 8192};
  std::vector<std::string> dtypes = {"fp32"};  // of x, the weight and all gradients; "bf16"
  std::vector<std::string> passes = {"forward", "forward-backward"};
  std::vector<std::string> implementations = {};  // empty: all of norm_implementations()
  std::string device = "cpu";
  int64_t calls = 1000;     // timed, of an implementation in a case, all turns together;
  double cell_seconds = 2;  // fewer where they would take longer, but three
  int64_t turns = 3;
  std::vector<std::string> peer_command = {};  // that runs scripts/peers/ops_torch.py
  TellProgress progress = {};
};

// "flashstep", "naive", "libtorch", "compiled": RMSNorm; "layer_norm": LibTorch's LayerNorm.
std::vector<std::string> norm_implementations();

// A line a case and implementation, who take turns on the same inputs. An error of ours beyond
// norm_tolerance() is the report's failure. UserError for a width that is there twice.
BenchReport bench_norm(const BenchNormOptions& options);

// What the error may be: some roundings of values of up to six root mean squares.
double norm_tolerance(const std::string& dtype);

Benchmark norm_benchmark(const BenchNormOptions& options);

}  // namespace flashstep::tools
