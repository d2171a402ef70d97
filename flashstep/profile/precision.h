// What 16-bit numbers cost: sums, the dtypes that autocast chooses, the steps of a norm, and a
// language model's error and time in bf16 beside fp32. All of it is computed or observed here.
#pragma once

#include <cstdint>

#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/workload.h"
#include "flashstep/measure/table.h"

namespace flashstep::tools {

// A thousand additions of 0.01, with sum and addend in float32, float16 or bfloat16: what comes
// out and how far from 10. The first four rows are the handout's loops.
measure::Table precision_accumulation();

// The dtype of every tensor of the handout's ToyModel (Linear, ReLU, LayerNorm, Linear) under
// autocast in float16 and bfloat16, on the CPU and on a GPU if there is one; else a note says why
// those columns are missing. An operation that a device does not have leaves "fails" in its cells
// and the reason in a note.
measure::Table precision_dtypes();

// LayerNorm and RMSNorm with one step at a time computed in 16 bits and all others in float64, on
// rows of several deviations: the largest error of the result as a share of its root mean square,
// beside what rounding the exact result costs. Inputs are rounded to the dtype first, so that only
// the steps err. The derivation says which steps suffer: those whose error is more than
// kSufferingFactor times the rounding's, or that overflow (an infinite square makes a result of 0).
constexpr double kSufferingFactor = 4;  // one more rounding of equal size is at most 2
struct NormOptions {
  int64_t rows = 64, width = 1024;
};
measure::Table precision_norms(const NormOptions& options);

// Language models of several sizes, float32 weights, in fp32 and under autocast to bf16: time of
// forward and backward (turns interleaved, the host waiting after every pass), and how far the
// loss, the logits and the gradient are from fp32's at the same weights and tokens.
struct PrecisionSizesOptions {
  // Of one context; precisions are ours.
  WorkloadAxes axes = {.modes = {"forward-backward"}, .common = {.model = {}, .batch_size = 4}};
  int64_t warmup = 2, steps = 5;  // passes of each precision
  TellProgress progress = {};
};
// A line a size, of one for which memory is too small too; all passes; a picture of the gain by
// size, from two on. UserError for a size, attention or device that is none.
BenchReport precision_sizes(const PrecisionSizesOptions& options);

// ---- Inside

Benchmark sizes_benchmark(const PrecisionSizesOptions& options);

}  // namespace flashstep::tools
