// The tokenizer against the PyPI packages tokenizers (training) and tiktoken (encoding), in one
// run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "flashstep/bench/benchmark.h"

namespace flashstep::tools {

struct TokenizerBenchOptions {
  std::vector<std::filesystem::path>
      texts;                        // none: Python sources found here, and the built-in stories
  int64_t megabytes = 100;          // of each text, to train on
  int64_t encode_megabytes = 20;    // of each text, to encode
  int64_t memory_megabytes = 1000;  // of the file whose encoding's peak memory is taken; 0: none
  std::vector<int64_t> vocab_sizes = {10'000, 32'000};
  std::string pattern = "gpt2";       // as word_pattern_by_name() takes it
  std::vector<int> threads = {1, 2};  // for encoding; training takes the last
  int repeats = 3;
  std::string python = "scripts/python";                   // runs `peers`
  std::string peers = "scripts/peers/tokenizer_peers.py";  // empty: no peers
  std::string program;  // this program, run again to take its peak memory
  TellProgress progress = {};
};

// A row a case: MB/s of ours and of the peer (medians, with the spread from p10 to p90), their
// ratio, and the number of ids that differ. Runs of ours and of the peer alternate on the same
// files. UserError for a text that cannot be read or options that make no sense; peers that are not
// there leave their cells empty.
BenchReport bench_tokenizer(const TokenizerBenchOptions& options);

}  // namespace flashstep::tools
