// flashstep data stories | fetch | inspect: the built-in stories, text from the network, and what
// files consist of.
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <string>

#include "apps/commands.h"
#include "flashstep/base/places.h"
#include "flashstep/base/progress.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/data/corpus.h"
#include "flashstep/data/inspect.h"
#include "flashstep/data/stories.h"
#include "flashstep/data/tinystories.h"
#include "flashstep/detail/files.h"
#include "flashstep/detail/token_file.h"
#include "flashstep/error.h"
#include "flashstep/train/run_directory.h"

namespace flashstep::apps {
namespace {

namespace fs = std::filesystem;

void add_stories(CLI::App& data) {
  auto* command = data.add_subcommand("stories", "Write the built-in corpus of children's stories");
  struct Arguments {
    int64_t megabytes = 0;
    uint64_t seed = 0;
    std::string out;
  };
  auto arguments = std::make_shared<Arguments>();
  constexpr int64_t kMaxMegabytes = 1'000'000;  // 1 TB
  command
      ->add_option("--megabytes", arguments->megabytes,
                   "Size in MB (10^6 bytes); the file ends with the story that reaches it")
      ->required()
      ->check(CLI::Range(int64_t{1}, kMaxMegabytes));
  command->add_option("--seed", arguments->seed, "The same seed gives the same bytes, anywhere")
      ->required()
      ->check(CLI::Range(int64_t{0}, INT64_MAX));
  command->add_option("--out", arguments->out, "The file to write")->required();
  command->callback([arguments] {
    require_place_for_file(arguments->out);
    require_no_file_of_run(arguments->out);
    const SignalGuard guard;
    ProgressBar bar("stories", ProgressBar::Unit::kBytes);
    const auto progress =
        interruptible(bar.callback(), "[data stories] interrupted; nothing was written");
    write_stories(arguments->out, static_cast<uint64_t>(arguments->megabytes) * 1'000'000,
                  arguments->seed, progress);
    bar.finish();
    std::printf("%s\n", arguments->out.c_str());
  });
}

void fetch_tinystories(const fs::path& directory, const std::string& base_url) {
  const SignalGuard guard;  // an interrupted transfer keeps what has come
  const TinyStories files = tinystories(base_url);
  for (const RemoteFile& file : {files.validation, files.train}) {
    ProgressBar bar(file.name, ProgressBar::Unit::kBytes);
    std::string note;
    const fs::path path = fetch(file, directory, bar.callback(),
                                [&](const std::string& sentence) { note = sentence; });
    bar.finish();
    if (!note.empty()) std::fprintf(stderr, "%s\n", note.c_str());
    std::printf("%s\n", path.c_str());
  }
}

void add_fetch(CLI::App& data) {
  auto* command = data.add_subcommand("fetch", "Download a corpus; a second call goes on");
  struct Arguments {
    std::string corpus, directory, base_url;
  };
  auto arguments = std::make_shared<Arguments>();
  command->add_option("corpus", arguments->corpus, "tinystories (2.2 GB)")
      ->required()
      ->check(CLI::IsMember({"tinystories"}));
  command->add_option("--out", arguments->directory, "Directory for the files")->required();
  command->add_option("--base-url", arguments->base_url,
                      "Folder that holds the files (default: $FLASHSTEP_TINYSTORIES_URL, else the "
                      "publisher's on huggingface.co)");
  command->callback([arguments] { fetch_tinystories(arguments->directory, arguments->base_url); });
}

// "name        value" with the values in one column.
void print_row(const std::string& name, const std::string& value) {
  std::printf("%-12s %s\n", name.c_str(), value.c_str());
}

std::string count(uint64_t number) { return with_commas(static_cast<int64_t>(number)); }

void inspect_tokens(const fs::path& path, size_t top) {
  const TokenFile file(path);
  const TokenStatistics statistics = token_statistics(file, top);
  print_row("type", file.bytes_per_token() == 2 ? "uint16" : "uint32");
  print_row("tokens", count(statistics.tokens));
  print_row("distinct ids", count(statistics.distinct));
  if (statistics.tokens == 0) return;
  print_row("smallest id", str(statistics.smallest));
  print_row("largest id", str(statistics.largest));
  std::printf("\n%10s  %16s  %6s\n", "id", "count", "share");
  constexpr double kBarCharacters = 40;
  for (const auto& [id, times] : statistics.commonest) {
    const double share = static_cast<double>(times) / static_cast<double>(statistics.tokens);
    const double of_most =
        static_cast<double>(times) / static_cast<double>(statistics.commonest.front().second);
    std::printf("%10" PRIu32 "  %16s  %5.2f%%  %s\n", id, count(times).c_str(), 100 * share,
                std::string(static_cast<size_t>(of_most * kBarCharacters), '#').c_str());
  }
}

void inspect_text(const fs::path& path) {
  const TextStatistics statistics = text_statistics(path, kDocumentEnd);
  print_row("type", "text");
  print_row("bytes", str(count(statistics.bytes), " (", human_bytes(statistics.bytes), ")"));
  print_row("documents", count(statistics.documents));
  print_row("lines", count(statistics.lines));
}

void add_inspect(CLI::App& data) {
  auto* command = data.add_subcommand("inspect", "Say what a token file or a text consists of");
  struct Arguments {
    std::string file;
    size_t top = 20;
  };
  auto arguments = std::make_shared<Arguments>();
  command->add_option("file", arguments->file, "TOKENS.npy or a text")->required();
  command->add_option("--top", arguments->top, "How many of the commonest token ids to show")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 32));
  command->callback([arguments] {
    const fs::path path = arguments->file;
    const bool is_npy =
        path.extension() == ".npy" || MappedFile(path).bytes().starts_with("\x93NUMPY");
    is_npy ? inspect_tokens(path, arguments->top) : inspect_text(path);
  });
}

}  // namespace

void add_data(CLI::App& app) {
  auto* data = app.add_subcommand("data", "Get text to train on, and look into files");
  data->require_subcommand(1);
  add_stories(*data);
  add_fetch(*data);
  add_inspect(*data);
}

}  // namespace flashstep::apps
