// flashstep tokenizer train | encode | decode
#include "flashstep/tokenizer.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "flashstep/base/places.h"
#include "flashstep/base/progress.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/terminal.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/bpe.h"
#include "flashstep/detail/files.h"
#include "flashstep/detail/token_file.h"
#include "flashstep/error.h"
#include "flashstep/train/prepare_data.h"
#include "flashstep/train/run_directory.h"

namespace flashstep::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNothingWritten = "[tokenizer] interrupted; nothing was written";

// `output` is none of the files of the tokenizer at `path`, a folder or a file.
void require_other_than_tokenizer(const fs::path& path, const fs::path& output) {
  const fs::path folder = fs::is_directory(path) ? path : path.parent_path();
  require_other_file(path, output);
  for (const char* name : kTokenizerFiles) require_other_file(folder / name, output);
}

struct TokenizerTrainArguments {
  std::vector<std::string> texts;
  BpeOptions options;
  std::string pattern = name_of(BpeOptions().pattern), out;
};

// Whether transformers takes `folder` for a model.
bool has_model(const fs::path& folder) {
  const fs::path config = folder / "config.json";
  if (!fs::exists(config)) return false;
  const auto json = nlohmann::json::parse(read_file(config), nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("model_type");
}

// What is there already is a tokenizer, and not that of a model beside it.
void require_tokenizer_to_replace(const fs::path& out) {
  const bool is_new = std::ranges::none_of(
      kTokenizerFiles, [&](const char* name) { return fs::exists(out / name); });
  if (is_new) return;
  require(!has_model(out), "expected a folder without a tokenizer, got ", out,
          ", whose tokenizer belongs to the model of its config.json");
  try {
    Tokenizer::load(out);
  } catch (const UserError& error) {
    throw UserError(str("expected a folder without a tokenizer, or with one to replace, got ", out,
                        ": ", error.what()));
  }
}

void run_train(TokenizerTrainArguments arguments) {
  require_place_for_directory(arguments.out);
  for (const char* name : kTokenizerFiles) require_no_file_of_run(arguments.out / fs::path(name));
  for (const std::string& text : arguments.texts) {
    for (const char* name : kTokenizerFiles)
      require_other_file(text, arguments.out / fs::path(name));
  }
  require_tokenizer_to_replace(arguments.out);
  arguments.options.pattern = word_pattern_by_name(arguments.pattern);
  const SignalGuard guard;
  ProgressBar reading("counting words", ProgressBar::Unit::kBytes);
  std::optional<ProgressBar> merging;  // its time begins when the words are counted
  const auto merge = [&](uint64_t done, uint64_t total) {
    reading.finish();
    if (!merging) merging.emplace("learning merges", ProgressBar::Unit::kCount);
    merging->update(done, total);
  };
  arguments.options.progress = interruptible(reading.callback(), kNothingWritten);
  arguments.options.merge_progress = interruptible(merge, kNothingWritten);
  const auto trained =
      train_bpe({arguments.texts.begin(), arguments.texts.end()}, arguments.options);
  if (merging) merging->finish();
  trained.save(arguments.out);
  const std::string fewer = trained.vocab_size() < arguments.options.vocab_size
                                ? str(" (the text has no pair left for more; asked for ",
                                      with_commas(arguments.options.vocab_size), ")")
                                : "";
  std::printf("%s tokens%s in %s\n", with_commas(trained.vocab_size()).c_str(), fewer.c_str(),
              arguments.out.c_str());
}

void add_train_command(CLI::App& tokenizer) {
  auto* command = tokenizer.add_subcommand("train", "Learn a byte-level BPE vocabulary from text");
  auto arguments = std::make_shared<TokenizerTrainArguments>();
  command->add_option("TEXT", arguments->texts, "Text files")->required();
  command
      ->add_option("--vocab-size", arguments->options.vocab_size,
                   "Tokens in all: 256 bytes, merges, special tokens")
      ->required();
  command
      ->add_option("--special-token", arguments->options.special_tokens,
                   "Text that is always one token, such as \"<|endoftext|>\" (may be repeated)")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--pattern", arguments->pattern,
          "How text is cut into words, across which nothing merges: gpt2 (the default), or gpt4, "
          "where a number has three digits at most, a sign goes with the letters behind it and "
          "line ends with the signs before them; of the files only tokenizer.json says so")
      ->option_text("gpt2|gpt4");
  command->add_flag("--split-digits", arguments->options.split_digits,
                    "Make every digit a word of its own, so that numbers are read digit by digit; "
                    "of the files only tokenizer.json says so");
  command->add_option("--threads", arguments->options.threads, "Threads; 0: all processors")
      ->capture_default_str();
  command->add_option("--out", arguments->out, "Folder for tokenizer.json, vocab.json, merges.txt")
      ->required();
  command->callback([arguments] { run_train(*arguments); });
}

struct EncodeArguments {
  std::vector<std::string> texts;
  std::string tokenizer, out;
  EncodeOptions options;
};

void run_encode(EncodeArguments arguments) {
  require_place_for_file(arguments.out);
  require_no_file_of_run(arguments.out);
  for (const std::string& text : arguments.texts) require_other_file(text, arguments.out);
  require_other_than_tokenizer(arguments.tokenizer, arguments.out);
  require_same_kind(arguments.out, "a token file (.npy)",
                    [&](std::string_view bytes) { TokenView(bytes, arguments.out); });
  const auto tokenizer = Tokenizer::load(arguments.tokenizer);
  if (const std::string note = note_of_missing_bytes(tokenizer); !note.empty())
    std::fprintf(stderr, "%s\n", note.c_str());
  const SignalGuard guard;
  ProgressBar bar("encoding", ProgressBar::Unit::kBytes);
  arguments.options.progress = interruptible(bar.callback(), kNothingWritten);
  const uint64_t tokens =
      encode_to_file(tokenizer, {arguments.texts.begin(), arguments.texts.end()}, arguments.out,
                     arguments.options);
  bar.finish();
  std::printf("%s tokens in %s\n", with_commas(static_cast<int64_t>(tokens)).c_str(),
              arguments.out.c_str());
}

void add_encode_command(CLI::App& tokenizer) {
  auto* command = tokenizer.add_subcommand("encode", "Turn text into a token file (.npy)");
  auto arguments = std::make_shared<EncodeArguments>();
  command
      ->add_option("TEXT", arguments->texts,
                   "Text files, encoded one after the other with nothing between them")
      ->required();
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "Folder or file: tokenizer.json, or vocab.json and merges.txt")
      ->required();
  command->add_option("--threads", arguments->options.threads, "Threads; 0: all processors")
      ->capture_default_str();
  command
      ->add_option("--out", arguments->out,
                   "Token file to write; FILE.manifest.json beside it names its tokenizer")
      ->required();
  command->callback([arguments] { run_encode(*arguments); });
}

// Calls use(bytes) for the text of a token file, a piece at a time.
template <typename Use>
void decode_pieces(const Tokenizer& tokenizer, const TokenFile& tokens, Use&& use) {
  constexpr uint64_t kPiece = 1 << 16;
  std::vector<uint32_t> ids;
  for (uint64_t begin = 0; begin < tokens.size(); begin += kPiece) {
    ids.resize(std::min(kPiece, tokens.size() - begin));
    tokens.read(begin, std::span<uint32_t>(ids));
    tokens.check_size();
    use(tokenizer.decode(ids));
    tokens.release_before(begin);
  }
}

void run_decode(const std::string& token_path, const std::string& tokenizer_path,
                const std::string& out) {
  if (!out.empty()) {
    require_place_for_file(out);
    require_no_file_of_run(out);
    require_other_file(token_path, out);
    require_other_than_tokenizer(tokenizer_path, out);
  }
  const auto tokenizer = Tokenizer::load(tokenizer_path);
  const TokenFile tokens(token_path, tokenizer.vocab_size());
  require_tokens_of(tokenizer, token_path);
  if (!out.empty()) {  // the bytes as they are
    AtomicFile file(out);
    decode_pieces(tokenizer, tokens, [&](const std::string& bytes) { file.write(bytes); });
    file.commit();
    return;
  }
  // For people: malformed UTF-8 as U+FFFD. A character may lie across two pieces.
  std::string waiting;
  decode_pieces(tokenizer, tokens, [&](const std::string& bytes) {
    waiting += bytes;
    const size_t end = whole_characters(waiting);
    const std::string text =
        shown_on(stdout, printable_utf8(std::string_view(waiting).substr(0, end)));
    std::fwrite(text.data(), 1, text.size(), stdout);
    waiting.erase(0, end);
  });
  const std::string text = shown_on(stdout, printable_utf8(waiting));
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void add_decode_command(CLI::App& tokenizer) {
  auto* command = tokenizer.add_subcommand("decode", "Turn a token file back into text");
  struct Arguments {
    std::string tokens, tokenizer, out;
  };
  auto arguments = std::make_shared<Arguments>();
  command->add_option("TOKENS", arguments->tokens, "Token file (.npy)")->required();
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "Folder or file: tokenizer.json, or vocab.json and merges.txt")
      ->required();
  command->add_option("--out", arguments->out,
                      "File for the exact bytes; without it, text goes to standard output");
  command->callback(
      [arguments] { run_decode(arguments->tokens, arguments->tokenizer, arguments->out); });
}

}  // namespace

void add_tokenizer(CLI::App& app) {
  auto* tokenizer = app.add_subcommand("tokenizer", "Byte-level BPE: train, encode, decode");
  tokenizer->require_subcommand(1);
  add_train_command(*tokenizer);
  add_encode_command(*tokenizer);
  add_decode_command(*tokenizer);
}

}  // namespace flashstep::apps
