// Training a language model with every implementation of attention under every wrapper.
#pragma once

#include <string>
#include <vector>

#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/parallel_case.h"

namespace flashstep::tools {

// How the cells of one number of ranks are measured. An implementation is "attention wrapper":
// "cuda bucketed 25".
struct MatrixPlan {
  ParallelCase c;
  std::vector<std::string> implementations;
  std::string train, validation;       // token files
  int64_t epochs = 1, most_steps = 0;  // at most so many steps an epoch; 0: all
  int64_t validation_tokens = 0;       // the first so many; 0: all
  double learning_rate = 1e-3;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MatrixPlan, c, implementations, train, validation, epochs,
                                   most_steps, validation_tokens, learning_rate)

struct BenchMatrixOptions {
  ParallelAxes axes;  // the first number of ranks is that of every wrapper but none
  std::vector<std::string> attention;
  std::vector<std::string> wrappers = {"none", "naive", "flat", "overlapped", "bucketed", "torch"};
  std::vector<double> bucket_megabytes = {25};
  MatrixPlan plan;  // its case and implementations are replaced
  TellProgress progress = {};
};

// Records of a training run each: samples "steps" (seconds) and "validation loss" (after each
// epoch, nats a token); facts "peak_bytes" (of the rank with most), "epoch steps" (those left out
// included), "tokens" (a step, all ranks), "bucket_megabytes". Pictures: time of a step, peak
// memory, tokens/s, and a heat map of the speed-up by wrapper. In the process that was called, and
// in each rank that it started.
BenchReport bench_matrix(const BenchMatrixOptions& options);
void bench_matrix_rank(const std::string& task);

}  // namespace flashstep::tools
