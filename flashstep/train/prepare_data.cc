#include "flashstep/train/prepare_data.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "flashstep/base/places.h"
#include "flashstep/base/progress.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/data/corpus.h"
#include "flashstep/data/cut.h"
#include "flashstep/data/manifest.h"
#include "flashstep/detail/bpe.h"
#include "flashstep/detail/files.h"
#include "flashstep/detail/token_file.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStopped =
    "[data] stopped while the data were prepared; the same command goes on from here";

// A line each, a line break within one as \n: two lists are two texts.
std::string lines_of(const std::vector<std::string>& texts) {
  std::vector<std::string> lines;
  for (const std::string& text : texts) {
    std::string& line = lines.emplace_back();
    for (const char c : text) line += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
  }
  return join(lines, "\n");
}

// To the stage's one output.
uint64_t write_tokens(const Tokenizer& tokenizer, const std::vector<fs::path>& texts,
                      const EncodeOptions& options, const Stage& stage, const StageBegun& begun) {
  const fs::path& output = stage.outputs.front();
  TokenFileWriter writer(output, tokenizer.vocab_size());
  const uint64_t count = encode_files(tokenizer, texts, options,
                                      [&](std::span<const uint32_t> ids) { writer.append(ids); });
  writer.commit();
  write_manifest(manifest_path(output), stage, begun);
  return count;
}

class Preparation {
 public:
  Preparation(const Config& config, const PrepareOptions& options)
      : config_(config), options_(options), directory_(config.text.directory) {}

  PreparedData run() {
    const SignalGuard guard;
    const bool tokens_given = !config_.tokens.train.empty();
    // Given tokens and a given tokenizer need no text.
    const bool needs_text = !tokens_given || config_.tokenizer.path.empty();
    if (tokens_given && needs_text && config_.text.source == "stories") {
      const std::string& given = config_.tokens.train;
      require(!setting_of_output(given, "tokenizer").empty(),
              "[data] expected tokenizer.path beside tokens.train, got none: a tokenizer would be "
              "trained on the built-in stories, and nothing says that it made ",
              given);
    }
    if (needs_text) require_texts_apart(corpus_options());  // before there is a lock among them
    const std::unique_ptr<FileLock> lock = needs_text ? lock_directory() : nullptr;
    if (needs_text && !only_checks()) refuse_files_of_others();
    const Corpus corpus = needs_text ? text() : Corpus();
    Tokenizer tokenizer = this->tokenizer(corpus);
    fs::path train = config_.tokens.train, validation = config_.tokens.validation;
    if (tokens_given) {
      for (const fs::path& tokens : {train, validation}) require_tokens_of(tokenizer, tokens);
    } else {
      train = encode(tokenizer, corpus.train, directory_ / "train.npy", corpus.cut_within_document);
      validation = encode(tokenizer, corpus.validation, directory_ / "validation.npy");
    }
    check_interrupted(kStopped);
    PreparedData data{corpus.train, corpus.validation, std::move(tokenizer), TokenFile(train),
                      TokenFile(validation)};
    if (data.train_tokens.fingerprint() == data.validation_tokens.fingerprint()) {
      say("[data] NOTE: the held-out tokens are those to train on: their loss says how well they "
          "are known by heart");
    }
    return data;
  }

 private:
  // Null where nothing will be written: a directory that holds all already may be read-only.
  std::unique_ptr<FileLock> lock_directory() {
    if (options_.skip_data && !fs::is_directory(directory_)) return nullptr;  // text() says so
    bool said = false;
    const auto wait = [&] {
      check_interrupted(kStopped);
      if (!options_.quiet && !std::exchange(said, true)) {
        std::fprintf(stderr, "[data] waiting for another run that prepares its data in %s\n",
                     directory_.c_str());
      }
    };
    try {
      if (!options_.skip_data) make_directories(directory_);
      return wait_for_lock(directory_ / "lock", wait);
    } catch (const MachineError& error) {
      if (options_.skip_data) return nullptr;
      if (!fs::is_directory(directory_)) throw;
      cannot_write_ = error.what();
      return nullptr;
    }
  }

  bool only_checks() const { return options_.skip_data || !cannot_write_.empty(); }

  void say(const std::string& sentence) const {
    if (!options_.quiet && !sentence.empty()) std::fprintf(stderr, "%s\n", sentence.c_str());
  }

  // A stage's progress, shown unless quiet; throws Interrupted.
  ProgressFunction progress(const std::string& label) const {
    if (options_.quiet) return interruptible({}, kStopped);
    const auto bar = std::make_shared<ProgressBar>(label, ProgressBar::Unit::kBytes);
    return interruptible([bar](uint64_t done, uint64_t total) { bar->update(done, total); },
                         kStopped);
  }

  // Before the first long work, not after it.
  void refuse_files_of_others() const {
    if (config_.tokenizer.path.empty()) require_own_tokenizer(tokenizer_stage({}));
    if (!config_.tokens.train.empty()) return;
    for (const char* name : {"train.npy", "validation.npy"}) {
      const fs::path output = directory_ / name;
      require_own_outputs(manifest_path(output), {"tokens", {}, {}, {output}});
    }
  }

  // A tokenizer's directory is replaced as a whole: all that is in it must be ours.
  void require_own_tokenizer(const Stage& stage) const {
    const fs::path directory = directory_ / "tokenizer";
    require_own_outputs(manifest_path(directory), stage);
    const auto refuse = [](const fs::path& path) {
      throw UserError(flashstep::str(
          "[data] expected ", path.string(), " to be missing, got something that was not made ",
          "here: move it away, or set text.directory to a place for what is made"));
    };
    std::error_code error;
    if (fs::exists(fs::symlink_status(directory, error)) && !fs::is_directory(directory, error)) {
      refuse(directory);
    }
    for (const auto& entry : fs::directory_iterator(directory, error)) {
      const auto& ours = stage.outputs;
      if (std::find(ours.begin(), ours.end(), entry.path()) == ours.end()) refuse(entry.path());
    }
  }

  // True if `stage` is done; where nothing is written it must be.
  bool is_done(const fs::path& output, const Stage& stage) const {
    const Verdict verdict = holds(manifest_path(output), stage);
    if (!verdict.holds && !cannot_write_.empty()) {
      throw MachineError(
          flashstep::str(cannot_write_, ", and ", output.string(), " is not ready: ", verdict.why));
    }
    require(verdict.holds || !options_.skip_data, "[skip_data] expected ", output.string(),
            " to be ready, but ", verdict.why);
    if (verdict.is_of_others && output.filename() != "validation.npy")
      require_replaceable(verdict.why);
    return verdict.holds;
  }

  // The run could not go on with what another text gives, and others may share what is there.
  void require_replaceable(const std::string& why) const {
    const fs::path tokens = directory_ / "train.npy";
    std::error_code error;
    if (options_.read_tokens.empty() || !fs::exists(tokens, error)) return;
    std::string there;
    try {
      there = TokenFile(tokens).fingerprint();
    } catch (const UserError&) {  // no token file
    }
    require(there != options_.read_tokens, "[resume] expected the text that the run has read so ",
            "far, got another text: has ", config_.text.source,
            " (text.source) changed since, or did ",
            "an earlier version cut or encode it otherwise (", why,
            ")? Go on with the text as it was, or begin a new run; ", directory_.string(),
            " is as it was");
  }

  CorpusOptions corpus_options() const {
    const TextConfig& text = config_.text;
    CorpusOptions options;
    options.source = text.source;
    options.validation = text.validation;
    options.validation_fraction = text.validation_fraction;
    options.document_end = text.document_end;
    options.directory = directory_;
    options.stories_bytes = static_cast<uint64_t>(text.stories_megabytes) * 1'000'000;
    options.stories_seed = static_cast<uint64_t>(text.stories_seed);
    options.base_url = text.base_url;
    return options;
  }

  Corpus text() const {
    CorpusOptions options = corpus_options();
    options.only_check = only_checks();
    options.may_replace = [this](const std::string& why) { require_replaceable(why); };
    options.progress = progress("text");
    if (!options_.quiet) {
      options.say = [](const std::string& sentence) {
        std::fprintf(stderr, "%s\n", sentence.c_str());
      };
    }
    try {
      Corpus corpus = prepare_corpus(options);
      check_interrupted(kStopped);
      return corpus;
    } catch (const UserError& error) {
      if (cannot_write_.empty()) throw;
      throw MachineError(cannot_write_ + ", and " + error.what());
    }
  }

  Stage tokenizer_stage(const std::vector<fs::path>& texts) const {
    const TokenizerConfig& settings = config_.tokenizer;
    const fs::path output = directory_ / "tokenizer";
    Stage stage{"tokenizer",
                {{"vocab_size", std::to_string(settings.vocab_size)},
                 {"special_tokens", lines_of(settings.special_tokens)}},
                texts,
                {output / "tokenizer.json", output / "vocab.json", output / "merges.txt"}};
    // Not set where they are the defaults: such a tokenizer may be older than these settings.
    if (settings.pattern != "gpt2") stage.settings["pattern"] = settings.pattern;
    if (settings.split_digits) stage.settings["split_digits"] = "true";
    return stage;
  }

  Tokenizer tokenizer(const Corpus& corpus) const {
    const TokenizerConfig& settings = config_.tokenizer;
    if (!settings.path.empty()) return Tokenizer::load(settings.path);
    const fs::path output = directory_ / "tokenizer";
    const Stage stage = tokenizer_stage(corpus.train);
    if (is_done(output, stage)) return Tokenizer::load(output);
    require_own_tokenizer(stage);
    const StageBegun begun = begin_stage(manifest_path(output), stage);
    say(begun.kept);
    BpeOptions options;
    options.vocab_size = settings.vocab_size;
    options.special_tokens = settings.special_tokens;
    options.pattern = word_pattern_by_name(settings.pattern);
    options.split_digits = settings.split_digits;
    options.threads = static_cast<int>(settings.threads);
    options.progress = progress("tokenizer");
    options.merge_progress = interruptible({}, kStopped);
    const Tokenizer trained = train_bpe(corpus.train, options);
    save_tokenizer(trained, output);
    write_manifest(manifest_path(output), stage, begun);
    if (!options_.quiet && trained.vocab_size() < settings.vocab_size) {
      std::fprintf(
          stderr, "[tokenizer] %s tokens of the %s asked for: the text has no pair left for more\n",
          with_commas(trained.vocab_size()).c_str(), with_commas(settings.vocab_size).c_str());
    }
    return trained;
  }

  // `cut_short`: the last text's document goes on elsewhere.
  fs::path encode(const Tokenizer& tokenizer, const std::vector<fs::path>& texts,
                  const fs::path& output, bool cut_short = false) const {
    Stage stage{"tokens", {{"tokenizer", tokenizer.fingerprint()}}, texts, {output}};
    const std::string& document_end = config_.text.document_end;
    std::vector<std::string> ends = missing_ends(texts, document_end);
    if (cut_short) ends.back().clear();
    const auto added =
        std::count_if(ends.begin(), ends.end(), [](auto& end) { return !end.empty(); });
    // Not set where nothing is added: such tokens may have been made before there was this setting.
    if (added > 0) {
      stage.settings["document_ends_added"] =
          flashstep::str(added, " of ", json_spelling(document_end));
    }
    if (is_done(output, stage)) return output;
    const StageBegun begun = begin_stage(manifest_path(output), stage);
    say(begun.kept);
    say(note_of_missing_bytes(tokenizer));
    EncodeOptions options;
    options.threads = static_cast<int>(config_.tokenizer.threads);
    options.progress = progress(output.filename().string());
    options.behind = std::move(ends);
    write_tokens(tokenizer, texts, options, stage, begun);
    return output;
  }

  const Config& config_;
  const PrepareOptions& options_;
  fs::path directory_;
  std::string cannot_write_;  // why nothing can be written into directory_; empty: it can
};

}  // namespace

std::string note_of_missing_bytes(const Tokenizer& tokenizer) {
  const int64_t missing = tokenizer.missing_bytes();
  if (missing == 0) return "";
  return str("[tokenizer] NOTE: no token for ", missing,
             " of the 256 bytes, which are left out where a text has them");
}

void save_tokenizer(const Tokenizer& tokenizer, const fs::path& directory) {
  const fs::path unfinished = directory.string() + ".unfinished";
  const auto remove = [](const fs::path& path) {
    remove_if_ours(path, is_tokenizer_file);
    require(!fs::exists(fs::symlink_status(path)), "[data] expected ", path.string(),
            " to be missing, got something that was not made here: move it away");
  };
  remove(unfinished);
  try {
    tokenizer.save(unfinished);
    sync_directory(unfinished);
    remove(directory);
  } catch (...) {
    remove_if_ours(unfinished, is_tokenizer_file);
    throw;
  }
  fs::rename(unfinished, directory);
  sync_directory(directory.parent_path());
}

uint64_t encode_to_file(const Tokenizer& tokenizer, const std::vector<fs::path>& texts,
                        const fs::path& output, const EncodeOptions& options) {
  const fs::path manifest = manifest_path(output);
  std::error_code error;
  const Stage stage{"encode", {{"tokenizer", tokenizer.fingerprint()}}, {}, {output}};
  if (fs::exists(fs::symlink_status(manifest, error))) {
    const std::string made_by = parse_manifest(read_file(manifest), manifest.string()).stage;
    require(made_by == stage.name, "[tokenizer] expected another file than ", output.string(),
            ", which a run has prepared, as ", manifest.string(), " says");
  }
  return write_tokens(tokenizer, texts, options, stage, /*begun=*/{});
}

void require_tokens_of(const Tokenizer& tokenizer, const fs::path& tokens) {
  const std::string made_with = setting_of_output(tokens, "tokenizer");
  require(made_with.empty() || made_with == tokenizer.fingerprint(), "[data] expected ",
          tokens.string(), " to hold tokens of this tokenizer (", tokenizer.fingerprint(),
          "), got those of another one (", made_with, ", says ", manifest_path(tokens).string(),
          "): encode its text with this one, or take the other tokenizer");
}

PreparedData prepare_data(const Config& config, const PrepareOptions& options) {
  return Preparation(config, options).run();
}

}  // namespace flashstep
