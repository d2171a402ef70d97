// flashstep bench: a table of benchmarks. Each prints one table, with peers in the same run and a
// verdict below.
#include "apps/bench.h"

#include <cstdio>
#include <iostream>
#include <unistd.h>

#include "apps/commands.h"
#include "flashstep/base/heap.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/terminal.h"
#include "flashstep/base/text.h"
#include "flashstep/data_parallel.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"

namespace flashstep::apps {
namespace {

using AddBenchmark = void (*)(CLI::App&);
constexpr AddBenchmark kBenchmarks[] = {
    add_bench_allreduce, add_bench_attention, add_bench_ddp,       add_bench_leaderboard,
    add_bench_matrix,    add_bench_norm,      add_bench_ops,       add_bench_products,
    add_bench_sharding,  add_bench_step,      add_bench_tokenizer,
};

}  // namespace

void ParallelFlags::add_options(CLI::App& command) {
  command.add_option("--preset", preset, "The lists of a year's handout: 2024, 2025, 2026")
      ->check(CLI::IsMember({"2024", "2025", "2026"}))
      ->capture_default_str();
  command
      .add_option("--model", given.models,
                  "Sizes by name, or as d_model/d_ff/layers/heads: 1600/6400/48/25")
      ->delimiter(',');
  command.add_option("--context", given.contexts, "Tokens of a row")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 24));
  command.add_option("--precision", given.precisions, "fp32, bf16 (autocast)")
      ->delimiter(',')
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command.add_option("--ranks", given.ranks, "Processes on this machine")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  command.add_option("--batch", given.batch_size, "Rows of one rank")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--vocab", given.vocab_size, "Tokens in the vocabulary; else the size's own")
      ->check(CLI::Range(1, 1 << 30));
  given.device.clear();
  command.add_option("--device", given.device, "cpu (Gloo) or cuda (NCCL); GPUs if there are any")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  add_directory(command, directory);
}

void ParallelFlags::apply(tools::ParallelAxes& axes) const {
  if (!given.models.empty()) axes.models = given.models;
  if (!given.contexts.empty()) axes.contexts = given.contexts;
  if (!given.precisions.empty()) axes.precisions = given.precisions;
  if (!given.ranks.empty()) axes.ranks = given.ranks;
  if (given.batch_size > 0) axes.batch_size = given.batch_size;
  if (given.vocab_size > 0) axes.vocab_size = given.vocab_size;
  axes.device = device_or_gpu(given.device);
  axes.attention = given.attention;
  make_output_directory(directory);
}

void add_wrappers(CLI::App& command, std::vector<std::string>& wrappers,
                  std::vector<double>& bucket_megabytes) {
  std::vector<std::string> names = strategy_names();
  names.insert(names.begin(), "none");
  names.emplace_back("bucketed nccl");
  command
      .add_option(
          "--wrapper", wrappers,
          join(names) +
              "; none: every process by itself; bucketed nccl: not by copies from GPU to GPU")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  command
      .add_option("--bucket-mb", bucket_megabytes,
                  "Sizes of buckets, 10^6 bytes; 0: chosen as flashstep train does")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1e9));
}

void add_turns(CLI::App& command, int64_t& turns, int64_t& warmup, int64_t& steps) {
  add_count(command, "--turns", turns, "Of every implementation, one after the other", 100'000);
  add_count(command, "--warmup", warmup, "Steps a turn that are not timed", 100'000);
  add_count(command, "--steps", steps, "Timed steps a turn", 100'000);
}

void add_attention(CLI::App& command, std::string& attention) {
  command.add_option("--attention", attention, "Implementation of attention")
      ->capture_default_str();
}

void PeerFlags::add_options(CLI::App& command, const std::string& help) {
  command.add_option("--python", python, "Python that has torch 2.11")->capture_default_str();
  command.add_option("--peer-script", script, help)->capture_default_str();
}

std::vector<std::string> PeerFlags::command() const {
  return script.empty() ? std::vector<std::string>() : std::vector{python, script};
}

void add_device(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "cpu or cuda; the GPU if there is one")
      ->check(CLI::IsMember({"cpu", "cuda"}));
}

std::string device_or_gpu(const std::string& device) {
  return !device.empty() ? device : measure::list_gpus().empty() ? "cpu" : "cuda";
}

void add_directory(CLI::App& command, std::string& directory) {
  command.add_option(
      "--out", directory,
      "Also write the tables (.txt, .md, .csv, .json) and pictures into this directory");
}

void add_names(CLI::App& command, const char* flag, std::vector<std::string>& names,
               const std::vector<std::string>& known, const std::string& help) {
  command.add_option(flag, names, help)->delimiter(',')->check(CLI::IsMember(known));
}

CLI::Option* add_count(CLI::App& command, const char* flag, int64_t& count, const char* help,
                       int64_t most, int64_t least) {
  return command.add_option(flag, count, help)
      ->check(CLI::Range(least, most))
      ->capture_default_str();
}

void add_implementations(CLI::App& command, std::vector<std::string>& names,
                         const std::vector<std::string>& known) {
  for (const std::string flag : {"--implementations", "--contestants"}) {  // its old name
    CLI::Option* option = command.add_option(
        flag, names,
        known.empty() ? "Only these, ours and peers by name" : "Only these: " + join(known));
    option->delimiter(',');
    if (!known.empty()) option->check(CLI::IsMember(known));
    if (flag == "--contestants") option->group("");
  }
}

void make_output_directory(const std::string& directory) {
  if (directory.empty()) return;
  try {
    make_directories(directory);
  } catch (const MachineError& error) {
    throw UserError(str("[--out] ", error.what()));
  }
  require(::access(directory.c_str(), W_OK | X_OK) == 0,
          "[--out] expected a directory that can be written to, got ", directory);
}

void print_progress(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

void show(const tools::BenchReport& report, const std::string& directory, const std::string& name) {
  std::cout << tools::to_text(report, terminal_columns(stdout));
  if (!directory.empty()) tools::save(report, directory + "/" + name);
  throw_end_of(report);
}

void run_and_show(const std::function<tools::BenchReport()>& benchmark,
                  const std::string& directory, const std::string& name) {
  make_output_directory(directory);
  keep_freed_memory();
  const SignalGuard signals;
  show(benchmark(), directory, name);
}

void throw_end_of(const tools::BenchReport& report) {
  if (report.signal != 0)
    throw Interrupted(report.signal, "interrupted; what was measured is shown");
  if (!report.failure.empty()) throw MachineError(report.failure);
}

void add_bench(CLI::App& app) {
  auto* bench = app.add_subcommand("bench", "Benchmarks, with peers in the same run");
  bench->require_subcommand(1);
  for (const AddBenchmark add : kBenchmarks) add(*bench);
}

}  // namespace flashstep::apps
