#include "flashstep/report/bench_tokenizer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "flashstep/base/text.h"
#include "flashstep/data/stories.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/stats.h"
#include "flashstep/tokenizer.h"

namespace flashstep::report {
namespace {

namespace fs = std::filesystem;
using measure::Cell;
using measure::Table;

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

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// The line that the peers' script prints; nothing when it cannot do it.
std::optional<std::string> ask_peer(const TokenizerBenchOptions& options,
                                    const std::vector<std::string>& arguments) {
  if (options.peers.empty()) return std::nullopt;
  std::string command = shell_quoted(options.python) + " " + shell_quoted(options.peers);
  for (const std::string& argument : arguments) command += " " + shell_quoted(argument);
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw_errno(errno, "cannot run " + options.python);
  std::string line;
  for (int c; (c = std::fgetc(pipe)) != EOF;) line += static_cast<char>(c);
  while (!line.empty() && line.back() == '\n') line.pop_back();
  if (::pclose(pipe) != 0 || line.empty()) return std::nullopt;
  return line;
}

std::optional<double> peer_seconds(const TokenizerBenchOptions& options,
                                   const std::vector<std::string>& arguments) {
  const auto line = ask_peer(options, arguments);
  if (!line) return std::nullopt;
  return std::strtod(line->c_str(), nullptr);
}

// ---- rows

struct Times {
  std::vector<double> ours, peer;  // seconds
};

void add_row(Table& table, const Corpus& corpus, const std::string& work, int64_t vocab_size,
             int threads, double bytes, const Times& times, const std::string& peer,
             const Cell& wrong) {
  const auto rate = [&](double seconds) {
    return bytes / static_cast<double>(kMegabyte) / seconds;
  };
  const auto spread = [&](const std::vector<double>& seconds) {
    return str(fixed(rate(measure::quantile(seconds, 0.9)), 1), "-",
               fixed(rate(measure::quantile(seconds, 0.1)), 1));
  };
  const double ours = measure::median(times.ours);
  std::vector<Cell> row = {
      corpus.name, work,       vocab_size,        threads, bytes / static_cast<double>(kMegabyte),
      ours,        rate(ours), spread(times.ours)};
  if (times.peer.empty()) {
    for (int i = 0; i < 5; ++i) row.emplace_back();
  } else {
    const double theirs = measure::median(times.peer);
    for (Cell cell :
         {Cell(peer), Cell(rate(theirs)), Cell(spread(times.peer)), Cell(theirs / ours), wrong}) {
      row.push_back(std::move(cell));
    }
  }
  table.add_row(std::move(row));
}

void bench_training(const Corpus& corpus, int64_t vocab_size, const TokenizerBenchOptions& options,
                    const TemporaryFolder& folder, Table& table) {
  BpeOptions train;
  train.vocab_size = vocab_size;
  train.special_tokens = {kSpecialToken};
  train.threads = options.threads.back();
  Times times;
  for (int i = 0; i < options.repeats; ++i) {
    options.say(str("training on ", corpus.name, ", ", vocab_size, " tokens, run ", i + 1));
    times.ours.push_back(seconds_of([&] {
      train_bpe({corpus.train}, train).save(folder / (corpus.name + std::to_string(vocab_size)));
    }));
    const auto theirs =
        peer_seconds(options, {"train", corpus.train.string(), std::to_string(vocab_size),
                               std::to_string(train.threads), (folder / "peer.json").string()});
    if (theirs) times.peer.push_back(*theirs);
  }
  add_row(table, corpus, "train", vocab_size, train.threads, corpus.train_bytes, times,
          "tokenizers", Cell());
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

void bench_encoding(const Corpus& corpus, int64_t vocab_size, int threads,
                    const TokenizerBenchOptions& options, const TemporaryFolder& folder,
                    Table& table) {
  const fs::path saved = folder / (corpus.name + std::to_string(vocab_size));
  const auto tokenizer = Tokenizer::load(saved);
  EncodeOptions encode;
  encode.threads = threads;
  Times times;
  int64_t wrong = 0;
  for (int i = 0; i < options.repeats; ++i) {
    options.say(str("encoding ", corpus.name, ", ", vocab_size, " tokens, ", threads,
                    " threads, run ", i + 1));
    std::vector<uint32_t> ids;
    ids.reserve(static_cast<size_t>(corpus.encode_bytes));
    times.ours.push_back(seconds_of([&] {
      encode_files(tokenizer, {corpus.encode}, encode, [&](std::span<const uint32_t> piece) {
        ids.insert(ids.end(), piece.begin(), piece.end());
      });
    }));
    const fs::path peer_ids = folder / "peer_ids";
    const auto theirs = peer_seconds(options, {"encode", corpus.encode.string(), saved.string(),
                                               std::to_string(threads), peer_ids.string()});
    if (!theirs) continue;
    times.peer.push_back(*theirs);
    wrong = std::max(wrong, wrong_ids(ids, peer_ids));
  }
  add_row(table, corpus, "encode", vocab_size, threads, corpus.encode_bytes, times, "tiktoken",
          wrong);
}

// ---- memory

// Runs this program again and returns the most memory it had, in bytes.
uint64_t peak_memory_of(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw_errno(errno, "cannot start " + command[0]);
  if (child == 0) {
    const int nowhere = ::open("/dev/null", O_WRONLY);
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(nowhere, stream);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  int status;
  struct rusage usage;
  if (::wait4(child, &status, 0, &usage) != child)
    throw_errno(errno, "cannot wait for " + command[0]);
  if (status != 0)
    throw MachineError(str("[bench tokenizer] ", command[0], " tokenizer encode failed"));
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

std::string memory_note(const Corpus& corpus, int64_t vocab_size,
                        const TokenizerBenchOptions& options, const TemporaryFolder& folder) {
  options.say(str("encoding ", options.memory_megabytes, " MB to see how much memory that takes"));
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
             " MB with ", options.threads.back(), " threads: ", fixed(peak_mb, 0),
             " MB (limit 500 MB: ", peak_mb < 500 ? "kept" : "BROKEN", ").");
}

// ---- verdict

// The least ratio among the rows of one kind of work.
std::string verdict(const Table& table, const std::string& work) {
  double least = 0;
  int64_t wrong = 0;
  for (const auto& row : table.rows) {
    const auto* ratio = std::get_if<double>(&row[11].value());
    if (ratio == nullptr || row[1] != Cell(work)) continue;
    least = least == 0 ? *ratio : std::min(least, *ratio);
    if (const auto* count = std::get_if<int64_t>(&row[12].value())) wrong += *count;
  }
  if (least == 0)
    return str(work, ": no peer to compare with (scripts/bootstrap --python installs them).");
  return str(work, ": at least ", fixed(least, 1),
             " x the peer (promised 3: ", least >= 3 ? "kept" : "BROKEN",
             work == "encode" ? str("), ", wrong, " ids differ.") : ").");
}

}  // namespace

Table bench_tokenizer(const TokenizerBenchOptions& options) {
  require(options.megabytes > 0 && options.encode_megabytes > 0 && options.memory_megabytes >= 0,
          "[bench tokenizer] expected megabytes > 0");
  require(!options.vocab_sizes.empty() && !options.threads.empty() && options.repeats > 0,
          "[bench tokenizer] expected a vocabulary size, a number of threads and a run at least");
  Table table;
  table.title = "Tokenizer";
  table.columns = {measure::text_column("text"),
                   measure::text_column("work"),
                   measure::integer_column("vocab_size"),
                   measure::integer_column("threads"),
                   measure::number_column("size", "MB", 0),
                   measure::number_column("time", "s", 2),
                   measure::number_column("ours", "MB/s", 1),
                   measure::text_column("p10-p90"),
                   measure::text_column("peer"),
                   measure::number_column("peer's rate", "MB/s", 1),
                   measure::text_column("its p10-p90"),
                   measure::number_column("ratio", "x", 1),
                   measure::integer_column("wrong ids")};
  const TemporaryFolder folder;
  options.say("gathering text");
  const std::vector<Corpus> corpora = make_corpora(options, folder);
  for (const Corpus& corpus : corpora) {
    for (const int64_t size : options.vocab_sizes)
      bench_training(corpus, size, options, folder, table);
  }
  for (const Corpus& corpus : corpora) {
    for (const int64_t size : options.vocab_sizes) {
      for (const int threads : options.threads)
        bench_encoding(corpus, size, threads, options, folder, table);
    }
  }
  for (const char* work : {"train", "encode"}) table.notes.push_back(verdict(table, work));
  if (options.memory_megabytes > 0) {
    table.notes.push_back(memory_note(corpora[0], options.vocab_sizes[0], options, folder));
  }
  table.notes.push_back(
      measure::one_line(measure::describe_machine()) +
      (options.peers.empty() ? "" : "; " + ask_peer(options, {"versions"}).value_or("no peers")));
  return table;
}

}  // namespace flashstep::report
