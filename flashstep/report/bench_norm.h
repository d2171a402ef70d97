// RMSNorm by our operation, by its formula, by LibTorch and through torch.compile, beside
// LayerNorm: how near each comes to the speed of memory, which is all that a norm waits for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flashstep/measure/stats.h"
#include "flashstep/report/bench_report.h"

namespace flashstep::report {

struct BenchNormOptions {
  int64_t rows = 50'000;
  std::vector<int64_t> widths = {1024, 2048, 4096, 8192};
  std::vector<std::string> dtypes = {"fp32"};  // of x, the weight and all gradients; "bf16"
  std::vector<std::string> passes = {"forward", "forward-backward"};
  std::vector<std::string> contestants = {};  // empty: all of norm_contestants()
  std::string device = "cpu";
  int64_t calls = 1000;     // timed, of a contestant in a case, all turns together;
  double cell_seconds = 2;  // fewer where they would take longer, but three
  int64_t turns = 3;
  std::vector<std::string> peer_command = {};  // that runs scripts/peers/norm_torch.py
  std::function<void(const std::string& line)> progress = {};  // may be empty
};

// "2024": the handout's; "cpu": a fifth of its rows; "quick": two widths, few rows. UserError for
// others.
BenchNormOptions norm_preset(const std::string& name);

// "flashstep", "naive", "libtorch", "compiled": RMSNorm; "layer_norm": LibTorch's LayerNorm.
const std::vector<std::string>& norm_contestants();

// A line a case and contestant, who take turns on the same inputs. What a contestant cannot do is
// a cell. What ours fails at, or errors of ours beyond norm_tolerance(), are the report's failure.
// UserError for what cannot be measured at all.
BenchReport bench_norm(const BenchNormOptions& options);

// ---- Inside

struct NormCase {
  int64_t rows = 0, width = 0;
  std::string dtype, pass;
};

struct NormRun {
  std::string contestant;
  NormCase c;
  std::vector<double> seconds;  // of single calls
  // The largest distance from float64, over the root mean square: of y, and of dx and the gradient
  // of the weight (and LayerNorm's bias).
  double error = 0, gradient_error = 0;
  std::string trouble;  // "OOM", "failed: ..."; empty: it was measured

  double median() const { return measure::median(seconds); }  // NaN: not measured
  bool has_gradients() const { return c.pass != "forward"; }
};

// What the error may be: some roundings of values of up to six root mean squares.
double norm_tolerance(const std::string& dtype);

double norm_bytes(const NormCase& c);  // the least that a call moves

// The first run of ours that failed or is too far from float64; empty: none.
std::string norm_failure(const std::vector<NormRun>& runs);

measure::Table norm_table(const std::vector<NormRun>& runs, const std::string& device);
std::vector<std::string> norm_verdict(const std::vector<NormRun>& runs);
std::vector<NamedPicture> norm_pictures(const std::vector<NormRun>& runs, const std::string& device,
                                        const std::string& footnote);

}  // namespace flashstep::report
