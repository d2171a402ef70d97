// flashstep bench: a table of benchmarks. Each prints one table, with peers in the same run and a
// verdict below.
#include "apps/bench.h"

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <unistd.h>

#include "apps/commands.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/terminal.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/train/tensor_memory.h"

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
  add_choice(command, "--preset", preset, {"2024", "2025", "2026"},
             "The lists of a year's handout: 2024, 2025, 2026");
  command
      .add_option("--model", models,
                  "Sizes by name, or as d_model/d_ff/layers/heads: 1600/6400/48/25")
      ->delimiter(',');
  add_number(command, "--context", contexts, {1, 1 << 24}, "Tokens of a row")->delimiter(',');
  add_names(command, "--precision", precisions, {"fp32", "bf16"}, "fp32, bf16 (autocast)");
  add_number(command, "--ranks", ranks, {1, 1024}, "Processes on this machine")->delimiter(',');
  add_number(command, "--batch", batch_size, {1, 1 << 20}, "Rows of one rank");
  add_number(command, "--vocab", vocab_size, {1, 1 << 30},
             "Tokens in the vocabulary; else the size's own");
  add_choice(command, "--device", device, {"cpu", "cuda"},
             "cpu (Gloo) or cuda (NCCL); GPUs if there are any");
  add_directory(command, directory);
}

void ParallelFlags::apply(tools::ParallelAxes& axes) const {
  take_if_given(models, axes.sizes);
  take_if_given(contexts, axes.contexts);
  take_if_given(precisions, axes.precisions);
  take_if_given(ranks, axes.ranks);
  take_if_given(batch_size, axes.common.batch_size);
  take_if_given(vocab_size, axes.common.model.vocab_size);
  axes.common.device = device_or_gpu(device);
  axes.attentions = {attention};
}

void PeerFlags::add_options(CLI::App& command, const std::string& help) {
  command.add_option("--python", python, "Python that has torch 2.11")->capture_default_str();
  command.add_option("--peer-script", script, help)->capture_default_str();
}

std::vector<std::string> PeerFlags::command() const {
  return script.empty() ? std::vector<std::string>() : std::vector{python, script};
}

void add_device(CLI::App& command, std::string& device) {
  add_choice(command, "--device", device, {"cpu", "cuda"}, "cpu or cuda; the GPU if there is one");
}

std::string device_or_gpu(const std::string& device) {
  return !device.empty() ? device : measure::list_gpus().empty() ? "cpu" : "cuda";
}

void add_directory(CLI::App& command, std::string& directory) {
  command.add_option(
      "--out", directory,
      "Also write the tables (.txt, .md, .csv, .json) and pictures into this directory");
}

CLI::Option* add_names(CLI::App& command, const char* flag, std::vector<std::string>& names,
                       const std::vector<std::string>& known, const std::string& help) {
  return command.add_option(flag, names, help)->delimiter(',')->check(CLI::IsMember(known));
}

void add_choice(CLI::App& command, const char* flag, std::string& choice,
                const std::vector<std::string>& known, const std::string& help) {
  command.add_option(flag, choice, help)->check(CLI::IsMember(known))->capture_default_str();
}

void apply_preset(CLI::App& command, const std::string& name) {
  if (name.empty()) return;
  std::vector<std::string> known;
  for (const auto& [preset, flags] : tools::command_presets().at(command.get_name())) {
    known.push_back(preset);
    if (preset != name) continue;
    std::istringstream words(flags);
    for (std::string flag, value; words >> flag >> value;) {
      CLI::Option* option = command.get_option(flag);
      if (option->count() > 0) continue;
      option->add_result(value);
      option->run_callback();
    }
  }
  require(tools::contains(known, name), "[bench ", command.get_name(), "] expected preset ",
          join(known), ", got \"", name, "\"");
}

void run_with_preset(CLI::App& command, const std::string& preset,
                     const std::function<void()>& run) {
  command.callback([&command, &preset, run] {
    apply_preset(command, preset);
    run();
  });
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

void make_output_directory(const std::string& directory, const std::vector<std::string>& names) {
  if (directory.empty()) return;
  try {
    make_directories(directory);
  } catch (const MachineError& error) {
    throw UserError(str("[--out] ", error.what()));
  }
  require(::access(directory.c_str(), W_OK | X_OK) == 0,
          "[--out] expected a directory that can be written to, got ", directory);
  for (const std::string& name : names) refuse_files_of_others(directory + "/" + name);
}

void refuse_files_of_others(const std::string& stem) {
  for (const char* ending : {".json", ".md", ".txt", ".csv", "_runs.json"}) {
    const std::string file = stem + ending;
    if (!std::filesystem::exists(file)) continue;
    try {
      measure::table_from_json(read_file(stem + ".json"), stem);
      return;
    } catch (const std::exception&) {
      throw UserError(str("[--out] expected ", file,
                          " to be missing, or written by flashstep, got ",
                          "another file; choose another place"));
    }
  }
}

void print_progress(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

void show(const tools::BenchReport& report, const std::string& stem) {
  std::cout << tools::to_text(report, terminal_columns(stdout));
  // Cut short before anything was measured: what an earlier call has written stays.
  const bool is_whole = report.signal == 0 && report.failure.empty();
  if (!stem.empty() && (is_whole || !report.table.rows.empty())) {
    refuse_files_of_others(stem);
    tools::save(report, stem);
  }
  if (report.signal != 0)
    throw Interrupted(report.signal, "interrupted; what was measured is shown");
  if (!report.failure.empty()) throw MachineError(report.failure);
}

void show(const tools::BenchReport& report, const std::string& directory, const std::string& name) {
  show(report, directory.empty() ? "" : directory + "/" + name);
}

void run_and_show(const std::function<tools::BenchReport()>& benchmark,
                  const std::string& directory, const std::string& name) {
  make_output_directory(directory, {name});
  keep_memory_of_tensors();
  const SignalGuard signals;
  show(benchmark(), directory, name);
}

void add_bench(CLI::App& app) {
  auto* bench = app.add_subcommand("bench", "Benchmarks, with peers in the same run");
  bench->require_subcommand(1);
  for (const AddBenchmark add : kBenchmarks) add(*bench);
}

}  // namespace flashstep::apps
