#include "flashstep/bench/tokenizer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <unistd.h>

#include "flashstep/base/signals.h"
#include "flashstep/base/subprocess.h"
#include "flashstep/base/temporary_folder.h"
#include "flashstep/base/text.h"
#include "flashstep/data/stories.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/tokenizer.h"

namespace flashstep::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSpecialToken = "<|endoftext|>";
constexpr uint64_t kMegabyte = 1'000'000;

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

// ---- what is measured

class TokenizerBench {
 public:
  TokenizerBench(const TokenizerBenchOptions& options, Run& run) : options_(options), run_(run) {}

  void measure() {
    run_.tell("gathering text");
    const std::vector<Corpus> corpora = make_corpora();
    for (const Corpus& corpus : corpora) {
      for (const int64_t size : options_.vocab_sizes) run_.add(training(corpus, size));
    }
    for (const Corpus& corpus : corpora) {
      for (const int64_t size : options_.vocab_sizes) {
        for (const int threads : options_.threads) run_.add(encoding(corpus, size, threads));
      }
    }
    if (options_.memory_megabytes > 0) note_memory(corpora[0]);
    if (!options_.peers.empty())
      run_.note("Peers: " + ask_peer({"versions"}).value_or("none") + ".");
  }

 private:
  static uint64_t bytes(int64_t megabytes) { return static_cast<uint64_t>(megabytes) * kMegabyte; }

  Corpus make_corpus(const std::string& name, const std::vector<fs::path>& files) const {
    Corpus corpus{name, folder_ / (name + "_train.txt"), folder_ / (name + "_encode.txt"), 0, 0};
    concatenate(files, bytes(options_.megabytes), corpus.train);
    concatenate({corpus.train}, bytes(options_.encode_megabytes), corpus.encode);
    corpus.train_bytes = static_cast<double>(fs::file_size(corpus.train));
    corpus.encode_bytes = static_cast<double>(fs::file_size(corpus.encode));
    return corpus;
  }

  std::vector<Corpus> make_corpora() const {
    if (!options_.texts.empty()) return {make_corpus("text", options_.texts)};
    const fs::path stories = folder_ / "stories.txt";
    write_stories(stories, bytes(options_.megabytes), 1);
    return {make_corpus("python", python_sources()), make_corpus("stories", {stories})};
  }

  fs::path saved(const Corpus& corpus, int64_t vocab_size) const {
    return folder_ / (corpus.name + std::to_string(vocab_size));
  }

  // The line that the peers' script prints; nothing when it cannot do it.
  std::optional<std::string> ask_peer(const std::vector<std::string>& arguments) const {
    if (options_.peers.empty()) return std::nullopt;
    ChildOptions child{.command = {options_.python, options_.peers}, .errors = Errors::kDropped};
    child.command.insert(child.command.end(), arguments.begin(), arguments.end());
    try {
      Subprocess process(child);
      const std::optional<std::string> line = process.read_line();
      process.lines_to_end();
      return process.status() == 0 ? line : std::nullopt;
    } catch (const MachineError&) {  // there is no such program
      return std::nullopt;
    }
  }

  // Runs of ours and of the peer alternate. `ours` returns its seconds; `compare` sees what the
  // peer wrote.
  Record alternate(const Corpus& corpus, const std::string& work, int64_t vocab_size, int threads,
                   const std::function<double()>& ours, const std::vector<std::string>& peer,
                   const std::function<void(Record&)>& compare) const {
    const bool train = work == "train";
    Record record;
    record.key = {
        {"text", corpus.name}, {"work", work}, {"vocab_size", vocab_size}, {"threads", threads}};
    record.what = str(work, " ", corpus.name, ", ", vocab_size, " tokens, ", threads, " threads");
    record.facts["bytes"] = train ? corpus.train_bytes : corpus.encode_bytes;
    for (int i = 0; i < options_.repeats; ++i) {
      check_interrupted("interrupted");
      run_.tell(str(record.what, ", run ", i + 1));
      record.samples["ours"].push_back(ours());
      const auto theirs = ask_peer(peer);
      if (!theirs) continue;
      record.samples["peer"].push_back(std::strtod(theirs->c_str(), nullptr));
      record.facts["peer"] = train ? "tokenizers" : "tiktoken";
      compare(record);
    }
    return record;
  }

  Record training(const Corpus& corpus, int64_t vocab_size) const {
    BpeOptions train;
    train.vocab_size = vocab_size;
    train.special_tokens = {kSpecialToken};
    train.pattern = word_pattern_by_name(options_.pattern);
    train.threads = options_.threads.back();
    const auto ours = [&] {
      const double start = measure::steady_seconds();
      train_bpe({corpus.train}, train).save(saved(corpus, vocab_size));
      return measure::steady_seconds() - start;
    };
    return alternate(
        corpus, "train", vocab_size, train.threads, ours,
        {"train", corpus.train.string(), std::to_string(vocab_size), std::to_string(train.threads),
         (folder_ / "peer.json").string(), options_.pattern},
        [](Record&) {});
  }

  Record encoding(const Corpus& corpus, int64_t vocab_size, int threads) const {
    const auto tokenizer = Tokenizer::load(saved(corpus, vocab_size));
    EncodeOptions encode;
    encode.threads = threads;
    std::vector<uint32_t> ids;
    const auto ours = [&] {
      ids = std::vector<uint32_t>();
      ids.reserve(static_cast<size_t>(corpus.encode_bytes));
      const double start = measure::steady_seconds();
      encode_files(tokenizer, {corpus.encode}, encode, [&](std::span<const uint32_t> piece) {
        ids.insert(ids.end(), piece.begin(), piece.end());
      });
      return measure::steady_seconds() - start;
    };
    const fs::path peer_ids = folder_ / "peer_ids";
    const auto compare = [&](Record& record) {
      const int64_t wrong = wrong_ids(ids, peer_ids);
      if (!(record.number("wrong ids") >= static_cast<double>(wrong)))
        record.facts["wrong ids"] = wrong;
    };
    return alternate(corpus, "encode", vocab_size, threads, ours,
                     {"encode", corpus.encode.string(), saved(corpus, vocab_size).string(),
                      std::to_string(threads), peer_ids.string(), options_.pattern},
                     compare);
  }

  // Runs this program again and tells the most memory it had.
  void note_memory(const Corpus& corpus) const {
    run_.tell(str("encoding ", options_.memory_megabytes, " MB to see how much memory that takes"));
    const fs::path text = folder_ / "large.txt";
    const auto repeats =
        static_cast<size_t>(bytes(options_.memory_megabytes) / fs::file_size(corpus.train) + 1);
    concatenate(std::vector<fs::path>(repeats, corpus.train), bytes(options_.memory_megabytes),
                text);
    Subprocess process({.command = {options_.program, "tokenizer", "encode", text.string(),
                                    "--tokenizer", saved(corpus, options_.vocab_sizes[0]).string(),
                                    "--threads", std::to_string(options_.threads.back()), "--out",
                                    (folder_ / "large.npy").string()},
                        .errors = Errors::kDropped});
    process.lines_to_end();
    if (process.status() != 0)
      throw MachineError(str("[bench tokenizer] ", options_.program, " tokenizer encode failed"));
    const double peak_mb = static_cast<double>(process.peak_resident_kib()) * 1024 / kMB;
    run_.note(str("Peak memory of `flashstep tokenizer encode` on ", options_.memory_megabytes,
                  " MB with ", options_.threads.back(), " threads: ", fixed(peak_mb, 0), " MB."));
  }

  const TokenizerBenchOptions& options_;
  Run& run_;
  TemporaryFolder folder_;
};

// ---- the table

Schema tokenizer_schema() {
  const auto spread = [](const char* who) {
    return [who](const Record& r, const Records&) {
      const auto at = [&](double q) {
        return fixed(r.number("bytes") / kMB / r.quantile(who, q), 1);
      };
      return r.has(who) ? measure::Cell(at(0.9) + "-" + at(0.1)) : measure::Cell();
    };
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
          {measure::number_column("ours", "MB/s", 1), finite(rate("bytes", "ours", 1e-6))},
          {measure::text_column("p10-p90"), spread("ours")},
          {measure::text_column("peer"), fact("peer")},
          {measure::number_column("peer's rate", "MB/s", 1), finite(rate("bytes", "peer", 1e-6))},
          {measure::text_column("its p10-p90"), spread("peer")},
          {measure::number_column("ratio", "x", 1), finite(ratio)},
          {measure::integer_column("wrong ids"), fact("wrong ids")}};
}

// Why there was no peer, as far as files say it.
std::string without_peer(const TokenizerBenchOptions& options) {
  if (options.peers.empty()) return "--peers names none";
  for (const std::string& file : {options.peers, options.python}) {
    if (file.find('/') != std::string::npos && !fs::exists(file)) return "there is no " + file;
  }
  return "scripts/bootstrap --python installs them";
}

// The least ratio of each kind of work.
std::vector<std::string> tokenizer_findings(const TokenizerBenchOptions& options,
                                            const Records& records) {
  std::vector<std::string> sentences;
  for (const auto& [work, members] : records.grouped(text_of("work"))) {
    double least = INFINITY, wrong = 0;
    for (const Record& r : members) {
      if (!r.has("peer")) continue;
      least = std::min(least, r.median("peer") / r.median("ours"));
      if (r.facts.contains("wrong ids")) wrong += r.number("wrong ids");
    }
    const std::string differ = work == "encode" ? str(", ", wrong, " ids differ") : "";
    sentences.push_back(
        std::isinf(least) ? work + ": no peer to compare with (" + without_peer(options) + ")."
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
  benchmark.title =
      options.pattern == "gpt2" ? "Tokenizer" : str("Tokenizer, words of ", options.pattern);
  benchmark.schema = [](const Records&) { return tokenizer_schema(); };
  benchmark.findings = [&](const Records& records) { return tokenizer_findings(options, records); };
  return run_benchmark(benchmark, options.progress,
                       [&](Run& run) { TokenizerBench(options, run).measure(); });
}

}  // namespace flashstep::tools
