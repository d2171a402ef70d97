// flashstep bench tokenizer
#include <filesystem>
#include <memory>
#include <string>

#include "apps/bench.h"
#include "flashstep/base/signals.h"
#include "flashstep/bench/tokenizer.h"

namespace flashstep::apps {

void add_bench_tokenizer(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "tokenizer", "BPE training and encoding against PyPI's tokenizers and tiktoken");
  auto options = std::make_shared<tools::TokenizerBenchOptions>();
  auto output = std::make_shared<BenchOutput>();
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
    options->progress = print_progress;
    const SignalGuard signals;
    output->show(tools::bench_tokenizer(*options));
  });
}

}  // namespace flashstep::apps
