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
  auto stem = std::make_shared<std::string>();
  command->add_option("TEXT", options->texts,
                      "Text files; none: this machine's Python sources, and the built-in stories");
  const auto add = [&](const char* flag, auto& value, const char* help) {
    return command->add_option(flag, value, help)->capture_default_str();
  };
  add("--megabytes", options->megabytes, "How much of each text to train on");
  add("--encode-megabytes", options->encode_megabytes, "How much of each text to encode");
  add("--memory-megabytes", options->memory_megabytes,
      "Size of the file whose encoding's peak memory is taken (0: none)");
  add("--vocab-size", options->vocab_sizes, "Vocabulary sizes")->delimiter(',');
  add_choice(*command, "--pattern", options->pattern, {"gpt2", "gpt4"},
             "How text is cut into words");
  add("--threads", options->threads, "Threads to encode with; training takes the last")
      ->delimiter(',');
  add("--repeats", options->repeats, "Runs of each case, ours and the peer's in turn");
  add("--python", options->python, "Python with the packages tokenizers, tiktoken and numpy");
  add("--peers", options->peers, "The peers' script; empty: none")
      ->check(
          [](const std::string& given) { return given.empty() ? "" : CLI::ExistingFile(given); });
  command->add_option("--out", *stem, "Also write the table to STEM.txt, .md, .csv and .json");
  command->callback([options, stem] {
    make_output_directory(std::filesystem::path(*stem).parent_path());
    if (!stem->empty()) refuse_files_of_others(*stem);
    options->program = std::filesystem::read_symlink("/proc/self/exe").string();
    options->progress = print_progress;
    const SignalGuard signals;
    show(tools::bench_tokenizer(*options), *stem);
  });
}

}  // namespace flashstep::apps
