// The matrix products of a training step by every algorithm that cuBLASLt offers for them, and the
// table (products/tuned.inc) of those that another algorithm than its first choice computes faster.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/workload.h"
#include "flashstep/products/tuned.h"

namespace flashstep::tools {

struct BenchProductsOptions {
  std::vector<Workload> workloads;  // whose steps are taken, to see what they multiply
  int64_t turns = 5;                // of each algorithm, one after the other
  double turn_seconds = 0.002;      // of an algorithm; a GPU's power limit is felt from 0.2 on
  std::filesystem::path table;      // brought up to date; empty: none
  TellProgress progress = {};
};

// A line a product. Its bits must repeat: an algorithm whose do not, is out. UserError without a
// GPU.
BenchReport bench_products(const BenchProductsOptions& options);

// ---- Inside

struct ProductRun {
  ProductShape shape;
  std::vector<double> seconds;  // by algorithm, medians of the turns; NaN: out

  int64_t best() const;  // the fastest, but 0 unless that saves a fiftieth
  double share_saved() const;
};

// A line of the table.
std::string table_line(const char* gpu, int64_t version, const ProductRun& run);

// `old` without what `runs` know better, and with what they name, in the order of the alphabet
// below the first line.
std::vector<std::string> merged_table(const std::vector<std::string>& old, const char* gpu,
                                      int64_t version, const std::vector<ProductRun>& runs);

}  // namespace flashstep::tools
