// flashstep bench: a table of benchmarks. Each prints one table: peers in the same run, a verdict
// below.
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "apps/commands.h"
#include "flashstep/base/files.h"
#include "flashstep/measure/table.h"
#include "flashstep/report/bench_tokenizer.h"

namespace flashstep::apps {
namespace {

// Where a benchmark's table goes.
struct Output {
  std::string stem;

  void add_option(CLI::App& command) {
    command.add_option("--out", stem, "Also write the table to STEM.md and STEM.json");
  }
  void show(const measure::Table& table) const {
    std::cout << measure::to_text(table);
    if (stem.empty()) return;
    write_file(stem + ".md", measure::to_markdown(table));
    write_file(stem + ".json", measure::to_json(table));
  }
};

void add_bench_tokenizer(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "tokenizer", "BPE training and encoding against PyPI's tokenizers and tiktoken");
  auto options = std::make_shared<report::TokenizerBenchOptions>();
  auto output = std::make_shared<Output>();
  command->add_option("TEXT", options->texts,
                      "Text files; none: this machine's Python sources, and the built-in stories");
  command->add_option("--megabytes", options->megabytes, "How much of each text to train on")
      ->capture_default_str();
  command
      ->add_option("--encode-megabytes", options->encode_megabytes,
                   "How much of each text to encode")
      ->capture_default_str();
  command
      ->add_option("--memory-megabytes", options->memory_megabytes,
                   "Size of the file whose encoding's peak memory is taken (0: none)")
      ->capture_default_str();
  command->add_option("--vocab-size", options->vocab_sizes, "Vocabulary sizes")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--threads", options->threads, "Threads to encode with; training takes the last")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--repeats", options->repeats, "Runs of each case, ours and the peer's in turn")
      ->capture_default_str();
  command
      ->add_option("--python", options->python,
                   "Python with the packages tokenizers, tiktoken and numpy")
      ->capture_default_str();
  command->add_option("--peers", options->peers, "The peers' script; empty: none")
      ->capture_default_str();
  output->add_option(*command);
  command->callback([options, output] {
    options->program = std::filesystem::read_symlink("/proc/self/exe").string();
    options->say = [](const std::string& what) { std::fprintf(stderr, "%s\n", what.c_str()); };
    output->show(report::bench_tokenizer(*options));
  });
}

}  // namespace

void add_bench(CLI::App& app) {
  auto* bench = app.add_subcommand("bench", "Benchmarks, with peers in the same run");
  bench->require_subcommand(1);
  add_bench_tokenizer(*bench);
}

}  // namespace flashstep::apps
