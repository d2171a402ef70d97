// What the benchmarks of `flashstep bench` share. Each stands in a file of its own, bench_NAME.cc,
// and is listed in bench.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "flashstep/bench/benchmark.h"
#include "flashstep/bench/parallel_case.h"
#include "flashstep/measure/table.h"

namespace flashstep::apps {

void add_bench_allreduce(CLI::App& bench);
void add_bench_attention(CLI::App& bench);
void add_bench_ddp(CLI::App& bench);
void add_bench_leaderboard(CLI::App& bench);
void add_bench_matrix(CLI::App& bench);
void add_bench_norm(CLI::App& bench);
void add_bench_ops(CLI::App& bench);
void add_bench_products(CLI::App& bench);
void add_bench_sharding(CLI::App& bench);
void add_bench_step(CLI::App& bench);
void add_bench_tokenizer(CLI::App& bench);

// What the benchmarks of several processes measure: each flag that is given replaces a list of the
// preset.
struct ParallelFlags {
  std::string preset = "2025";
  tools::ParallelAxes given = {
      .models = {}, .contexts = {}, .precisions = {}, .ranks = {}, .batch_size = 0};
  std::string directory;

  // --preset, --model, --context, --precision, --ranks, --batch, --vocab, --device, --out
  void add_options(CLI::App& command);
  // Puts what was given into the preset's axes; without --device the GPUs if there are any. Makes
  // the directory of --out.
  void apply(tools::ParallelAxes& axes) const;
};

// --wrapper and --bucket-mb, lists; --turns, --warmup and --steps.
void add_wrappers(CLI::App& command, std::vector<std::string>& wrappers,
                  std::vector<double>& bucket_megabytes);
void add_turns(CLI::App& command, int64_t& turns, int64_t& warmup, int64_t& steps);
void add_attention(CLI::App& command, std::string& attention);

// A baseline in Python: --python and --peer-script.
struct PeerFlags {
  std::string python = "scripts/python", script;  // relative to where the command runs

  void add_options(CLI::App& command, const std::string& help);
  std::vector<std::string> command() const;  // none without a script
};

// What most benchmarks have: --device ("": the GPU if there is one), --out and lists of names.
void add_device(CLI::App& command, std::string& device);
std::string device_or_gpu(const std::string& device);
void add_directory(CLI::App& command, std::string& directory);
void add_names(CLI::App& command, const char* flag, std::vector<std::string>& names,
               const std::vector<std::string>& known, const std::string& help);
// A number from 1 (or `least`) to `most`; its default is shown.
CLI::Option* add_count(CLI::App& command, const char* flag, int64_t& count, const char* help,
                       int64_t most, int64_t least = 1);
// --implementations; `known` empty: the benchmark says which there are.
void add_implementations(CLI::App& command, std::vector<std::string>& names,
                         const std::vector<std::string>& known);
template <typename T>
void take_if_given(const std::vector<T>& given, std::vector<T>& list) {
  if (!given.empty()) list = given;
}
inline void take_if_given(int64_t given, int64_t& value) {
  if (given > 0) value = given;
}

void print_progress(const std::string& line);  // on stderr

// The directory of --out, before all work; nothing for "". UserError if it cannot be made or
// written to.
void make_output_directory(const std::string& directory);

// Prints a report, writes its files DIRECTORY/NAME.* (none without a directory), and ends as
// Interrupted, or with MachineError, if that was its end.
void show(const tools::BenchReport& report, const std::string& directory, const std::string& name);
// The same of a benchmark in this process: under a SignalGuard, with freed memory kept as flashstep
// train does.
void run_and_show(const std::function<tools::BenchReport()>& benchmark,
                  const std::string& directory, const std::string& name);
// Ends the command as Interrupted, or with MachineError, if that was the report's end.
void throw_end_of(const tools::BenchReport& report);

}  // namespace flashstep::apps
