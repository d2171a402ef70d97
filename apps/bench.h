// What the benchmarks of `flashstep bench` share. Each stands in a file of its own, bench_NAME.cc,
// and is listed in bench.cc.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "flashstep/measure/table.h"

namespace flashstep::apps {

void add_bench_allreduce(CLI::App& bench);
void add_bench_attention(CLI::App& bench);
void add_bench_step(CLI::App& bench);
void add_bench_tokenizer(CLI::App& bench);

// Where a benchmark's table goes: to standard output, and to files when asked.
struct BenchOutput {
  std::string stem;

  void add_option(CLI::App& command);  // --out STEM
  void show(const measure::Table& table) const;
};

}  // namespace flashstep::apps
