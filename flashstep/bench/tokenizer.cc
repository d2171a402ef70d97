#include "flashstep/bench/tokenizer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <unistd.h>

#include "flashstep/base/signals.h"
#include "flashstep/base/subprocess.h"
#include "flashstep/base/text.h"
#include "flashstep/data/stories.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/tokenizer.h"

namespace flashstep::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSpecialToken = "<|endoftext|>";
constexpr uint64_t kMegabyte = 1'000'000;

// A folder that goes with the run.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "flashstep_bench_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw_errno(errno, "cannot create a folder in /tmp");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// ---- texts

struct Corpus {
  std::string name;
  fs::path train, encode;
  double train_bytes, encode_bytes;
};

// The Python sources of this machine: long-tailed real text, which every machine with a Python has.
std::vector<fs::path> python_sources() {
  std::vector<fs::path> roots = {"/usr/lib/python3", "/usr/lib/python3.11", "/usr/local/lib"};
  if (const char* home = std::getenv("HOME")) {
    for (const char* folder : {".pyenv", ".cache/flashstep"})
      roots.push_back(fs::path(home) / folder);
  }
  std::vector<fs::path> files;
  for (const fs::path& root : roots) {
    std::error_code error;
    const auto skip = fs::directory_options::skip_permission_denied;
    for (fs::recursive_directory_iterator it(root, skip, error), end; it != end;
         it.increment(error)) {
      if (error) break;
      if (it->path().extension() == ".py" && it->is_regular_file(error))
        files.push_back(it->path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The files one after the other, cut after `limit` bytes (and there before a UTF-8 character, not
// inside).
void concatenate(const std::vector<fs::path>& files, uint64_t limit, const fs::path& out) {
  AtomicFile file(out);
  for (const fs::path& path : files) {
    if (file.size_bytes() >= limit) break;
    const MappedFile source(path);
    uint64_t size = std::min<uint64_t>(source.size_bytes(), limit - file.size_bytes());
    while (size > 0 && size < source.size_bytes() && (source.data()[size] & 0xC0) == 0x80) --size;
    const std::string_view bytes = source.bytes().substr(0, size);
    // tiktoken takes well-formed UTF-8 only; printable_utf8 keeps that as it is.
    if (printable_utf8(bytes) == bytes) file.write(bytes);
    if (size < source.size_bytes()) break;
  }
  require(file.size_bytes() > 0, "[bench tokenizer] expected text to work on, found none");
  file.commit();
}

Corpus make_corpus(const std::string& name, const std::vector<fs::path>& files,
                   const TokenizerBenchOptions& options, const TemporaryFolder& folder) {
  Corpus corpus{name, folder / (name + "_train.txt"), folder / (name + "_encode.txt"), 0, 0};
  concatenate(files, static_cast<uint64_t>(options.megabytes) * kMegabyte, corpus.train);
  concatenate({corpus.train}, static_cast<uint64_t>(options.encode_megabytes) * kMegabyte,
              corpus.encode);
  corpus.train_bytes = static_cast<double>(fs::file_size(corpus.train));
  corpus.encode_bytes = static_cast<double>(fs::file_size(corpus.encode));
  return corpus;
}

std::vector<Corpus> make_corpora(const TokenizerBenchOptions& options,
                                 const TemporaryFolder& folder) {
  if (!options.texts.empty()) return {make_corpus("text", options.texts, options, folder)};
  const fs::path stories = folder / "stories.txt";
  write_stories(stories, static_cast<uint64_t>(options.megabytes) * kMegabyte, 1);
  return {make_corpus("python", python_sources(), options, folder),
          make_corpus("stories", {stories}, options, folder)};
}

// ---- peers

// The line that the peers' script prints; nothing when it cannot do it.
std::optional<std::string> ask_peer(const TokenizerBenchOptions& options,
                                    const std::vector<std::string>& arguments) {
  if (options.peers.empty()) return std::nullopt;
  ChildOptions child;
  child.command = {options.python, options.peers};
  child.command.insert(child.command.end(), arguments.begin(), arguments.end());
  child.errors = Errors::kDropped;
  try {
    Subprocess process(child);
    const std::optional<std::string> line = process.read_line();
    while (process.wait(/*milliseconds=*/100)) check_interrupted("interrupted");
    return process.status() == 0 ? line : std::nullopt;
  } catch (const MachineError&) {  // there is no such program
    return std::nullopt;
  }
}

std::optional<double> peer_seconds(const TokenizerBenchOptions& options,
                                   const std::vector<std::string>& arguments) {
  const auto line = ask_peer(options, arguments);
  if (!line) return std::nullopt;
  return std::strtod(line->c_str(), nullptr);
}

// ---- rows

Record record_of(const Corpus& corpus, const std::string& work, int64_t vocab_size, int threads) {
  Record record;
  record.key = {{"text", corpus.name},
                {"work", work},
                {"vocab_size", vocab_size},
                {"threads", static_cast<int64_t>(threads)}};
  record.what = str(work, " ", corpus.name, ", ", vocab_size, " tokens, ", threads, " threads");
  record.facts["bytes"] = work == "train" ? corpus.train_bytes : corpus.encode_bytes;
  record.facts["peer"] = work == "train" ? "tokenizers" : "tiktoken";
  return record;
}

Record bench_training(const Corpus& corpus, int64_t vocab_size,
                      const TokenizerBenchOptions& options, const TemporaryFolder& folder,
                      const Run& run) {
  BpeOptions train;
  train.vocab_size = vocab_size;
  train.special_tokens = {kSpecialToken};
  train.threads = options.threads.back();
  Record record = record_of(corpus, "train", vocab_size, train.threads);
  for (int i = 0; i < options.repeats; ++i) {
    check_interrupted("interrupted");
    run.tell(str("training on ", corpus.name, ", ", vocab_size, " tokens, run ", i + 1));
    record.samples["ours"].push_back(seconds_of([&] {
      train_bpe({corpus.train}, train).save(folder / (corpus.name + std::to_string(vocab_size)));
    }));
    const auto theirs =
        peer_seconds(options, {"train", corpus.train.string(), std::to_string(vocab_size),
                               std::to_string(train.threads), (folder / "peer.json").string()});
    if (theirs) record.samples["peer"].push_back(*theirs);
  }
  return record;
}

// How many ids differ, a difference in number included.
int64_t wrong_ids(const std::vector<uint32_t>& ours, const fs::path& theirs) {
  const std::string bytes = read_file(theirs);
  std::vector<uint32_t> ids(bytes.size() / sizeof(uint32_t));
  std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(uint32_t));
  const size_t common = std::min(ids.size(), ours.size());
  auto wrong = static_cast<int64_t>(std::max(ids.size(), ours.size()) - common);
  for (size_t i = 0; i < common; ++i) wrong += ids[i] != ours[i];
  return wrong;
}

Record bench_encoding(const Corpus& corpus, int64_t vocab_size, int threads,
                      const TokenizerBenchOptions& options, const TemporaryFolder& folder,
                      const Run& run) {
  const fs::path saved = folder / (corpus.name + std::to_string(vocab_size));
  const auto tokenizer = Tokenizer::load(saved);
  EncodeOptions encode;
  encode.threads = threads;
  Record record = record_of(corpus, "encode", vocab_size, threads);
  for (int i = 0; i < options.repeats; ++i) {
    check_interrupted("interrupted");
    run.tell(str("encoding ", corpus.name, ", ", vocab_size, " tokens, ", threads, " threads, run ",
                 i + 1));
    std::vector<uint32_t> ids;
    ids.reserve(static_cast<size_t>(corpus.encode_bytes));
    record.samples["ours"].push_back(seconds_of([&] {
      encode_files(tokenizer, {corpus.encode}, encode, [&](std::span<const uint32_t> piece) {
        ids.insert(ids.end(), piece.begin(), piece.end());
      });
    }));
    const fs::path peer_ids = folder / "peer_ids";
    const auto theirs = peer_seconds(options, {"encode", corpus.encode.string(), saved.string(),
                                               std::to_string(threads), peer_ids.string()});
    if (!theirs) continue;
    record.samples["peer"].push_back(*theirs);
    const int64_t wrong = wrong_ids(ids, peer_ids);
    if (!(record.number("wrong ids") >= static_cast<double>(wrong)))
      record.facts["wrong ids"] = wrong;
  }
  return record;
}

// ---- memory

// Runs this program again and returns the most memory it had, in bytes.
uint64_t peak_memory_of(const std::vector<std::string>& command) {
  Subprocess process({.command = command, .errors = Errors::kDropped});
  while (process.wait(/*milliseconds=*/100)) {
    process.take_lines();
    check_interrupted("interrupted");
  }
  if (process.status() != 0)
    throw MachineError(str("[bench tokenizer] ", command[0], " tokenizer encode failed"));
  return static_cast<uint64_t>(process.peak_resident_kib()) * 1024;
}

std::string memory_note(const Corpus& corpus, int64_t vocab_size,
                        const TokenizerBenchOptions& options, const TemporaryFolder& folder,
                        const Run& run) {
  run.tell(str("encoding ", options.memory_megabytes, " MB to see how much memory that takes"));
  const uint64_t wanted = static_cast<uint64_t>(options.memory_megabytes) * kMegabyte;
  const fs::path text = folder / "large.txt";
  {
    const auto repeats = static_cast<size_t>(wanted / fs::file_size(corpus.train) + 1);
    concatenate(std::vector<fs::path>(repeats, corpus.train), wanted, text);
  }
  const uint64_t peak = peak_memory_of(
      {options.program, "tokenizer", "encode", text.string(), "--tokenizer",
       (folder / (corpus.name + std::to_string(vocab_size))).string(), "--threads",
       std::to_string(options.threads.back()), "--out", (folder / "large.npy").string()});
  const double peak_mb = static_cast<double>(peak) / static_cast<double>(kMegabyte);
  return str("Peak memory of `flashstep tokenizer encode` on ", options.memory_megabytes,
             " MB with ", options.threads.back(), " threads: ", fixed(peak_mb, 0), " MB.");
}

// ---- the table

Schema tokenizer_schema() {
  using measure::Cell;
  const auto rate = [](const char* who) {
    return finite([who](const Record& r, const Records&) {
      return r.number("bytes") / static_cast<double>(kMegabyte) / r.median(who);
    });
  };
  const auto spread = [](const char* who) {
    return [who](const Record& r, const Records&) {
      const auto at = [&](double q) {
        return fixed(r.number("bytes") / static_cast<double>(kMegabyte) / r.quantile(who, q), 1);
      };
      return r.has(who) ? Cell(at(0.9) + "-" + at(0.1)) : Cell();
    };
  };
  const auto peer = [](const Record& r, const Records&) {
    return r.has("peer") ? Cell(r.text("peer")) : Cell();
  };
  const auto ratio = [](const Record& r, const Records&) {
    return r.median("peer") / r.median("ours");
  };
  return {text_key("text"),
          text_key("work"),
          integer_key("vocab_size"),
          integer_key("threads"),
          {measure::number_column("size", "MB", 0), fact("bytes", 1e-6)},
          {measure::number_column("time", "s", 2), median("ours")},
          {measure::number_column("ours", "MB/s", 1), rate("ours")},
          {measure::text_column("p10-p90"), spread("ours")},
          {measure::text_column("peer"), peer},
          {measure::number_column("peer's rate", "MB/s", 1), rate("peer")},
          {measure::text_column("its p10-p90"), spread("peer")},
          {measure::number_column("ratio", "x", 1), finite(ratio)},
          {measure::integer_column("wrong ids"), fact("wrong ids")}};
}

// The least ratio of each kind of work.
std::vector<std::string> tokenizer_findings(const Records& records) {
  std::vector<std::string> sentences;
  for (const auto& [work, members] :
       records.grouped([](const Record& r) { return r.text("work"); })) {
    double least = INFINITY, wrong = 0;
    for (const Record& r : members) {
      if (!r.has("peer")) continue;
      least = std::min(least, r.median("peer") / r.median("ours"));
      if (r.facts.contains("wrong ids")) wrong += r.number("wrong ids");
    }
    const std::string differ = work == "encode" ? str(", ", wrong, " ids differ") : "";
    sentences.push_back(
        std::isinf(least)
            ? work + ": no peer to compare with (scripts/bootstrap --python installs them)."
            : str(work, ": at least ", fixed(least, 1), " x the peer", differ, "."));
  }
  return sentences;
}

}  // namespace

BenchReport bench_tokenizer(const TokenizerBenchOptions& options) {
  require(options.megabytes > 0 && options.encode_megabytes > 0 && options.memory_megabytes >= 0,
          "[bench tokenizer] expected megabytes > 0");
  require(!options.vocab_sizes.empty() && !options.threads.empty() && options.repeats > 0,
          "[bench tokenizer] expected a vocabulary size, a number of threads and a run at least");
  Benchmark benchmark;
  benchmark.command = "bench tokenizer";
  benchmark.title = "Tokenizer";
  benchmark.schema = [](const Records&) { return tokenizer_schema(); };
  benchmark.findings = tokenizer_findings;
  return run_benchmark(benchmark, options.progress, [&](Run& run) {
    const TemporaryFolder folder;
    run.tell("gathering text");
    const std::vector<Corpus> corpora = make_corpora(options, folder);
    for (const Corpus& corpus : corpora) {
      for (const int64_t size : options.vocab_sizes)
        run.add(bench_training(corpus, size, options, folder, run));
    }
    for (const Corpus& corpus : corpora) {
      for (const int64_t size : options.vocab_sizes) {
        for (const int threads : options.threads)
          run.add(bench_encoding(corpus, size, threads, options, folder, run));
      }
    }
    if (options.memory_megabytes > 0)
      run.note(memory_note(corpora[0], options.vocab_sizes[0], options, folder, run));
    if (!options.peers.empty())
      run.note("Peers: " + ask_peer(options, {"versions"}).value_or("none") + ".");
  });
}

}  // namespace flashstep::tools
