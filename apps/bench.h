// What the benchmarks of `flashstep bench` share. They stand in files bench_NAME.cc, those that
// start ranks in bench_parallel.cc, and are listed in bench.cc.
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
  std::vector<std::string> models, precisions;
  std::vector<int64_t> contexts, ranks;
  int64_t batch_size = 0, vocab_size = 0;
  std::string device, attention = "auto", directory;

  // --preset, --model, --context, --precision, --ranks, --batch, --vocab, --device, --out
  void add_options(CLI::App& command);
  // Puts what was given into the preset's axes; without --device the GPUs if there are any.
  void apply(tools::ParallelAxes& axes) const;
};

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
CLI::Option* add_names(CLI::App& command, const char* flag, std::vector<std::string>& names,
                       const std::vector<std::string>& known, const std::string& help);
// One of them; the help shows the default.
void add_choice(CLI::App& command, const char* flag, std::string& choice,
                const std::vector<std::string>& known, const std::string& help);
// A number, or one that may be left out, or a list, within a range.
template <typename T>
CLI::Option* add_number(CLI::App& command, const char* flag, T& value, const CLI::Range& range,
                        const std::string& help) {
  return command.add_option(flag, value, help)->check(range);
}
// A number whose default the help shows.
template <typename T>
void add_shown_number(CLI::App& command, const char* flag, T& value, const CLI::Range& range,
                      const std::string& help) {
  add_number(command, flag, value, range, help)->capture_default_str();
}
// Gives the command the flags of a preset (bench/presets.json), but for those that it was given.
void apply_preset(CLI::App& command, const std::string& name);
// What the command does when all is parsed, and its preset applied. `preset` lives as long as
// `run`.
void run_with_preset(CLI::App& command, const std::string& preset,
                     const std::function<void()>& run);
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

// The directory of --out, before all work, for NAME.* of each of `names`; nothing for "". UserError
// if it cannot be made or written to, or as refuse_files_of_others().
void make_output_directory(const std::string& directory,
                           const std::vector<std::string>& names = {});

// UserError where STEM.* would overwrite files that no earlier call wrote: beside those STEM.json
// is a table.
void refuse_files_of_others(const std::string& stem);

// Prints a report, writes its files STEM.* (none without a stem), and ends as Interrupted, or with
// MachineError, if that was its end.
void show(const tools::BenchReport& report, const std::string& stem);
// DIRECTORY/NAME.*; none without a directory.
void show(const tools::BenchReport& report, const std::string& directory, const std::string& name);
// The same of a benchmark that runs here and tells its progress: under a SignalGuard, with freed
// memory kept as flashstep train does.
void run_and_show(const std::function<tools::BenchReport()>& benchmark,
                  const std::string& directory, const std::string& name);
template <typename Options>
void run_and_show(tools::BenchReport (*benchmark)(const Options&), Options& options,
                  const std::string& directory, const std::string& name) {
  options.progress = print_progress;
  run_and_show([&] { return benchmark(options); }, directory, name);
}

}  // namespace flashstep::apps
