#include "flashstep/train/prepare_data.h"

#include <memory>
#include <string>
#include <utility>

#include "flashstep/base/error.h"
#include "flashstep/base/files.h"
#include "flashstep/base/progress.h"
#include "flashstep/base/signals.h"
#include "flashstep/data/corpus.h"
#include "flashstep/data/manifest.h"
#include "flashstep/data/token_file.h"

namespace flashstep::train {
namespace {

namespace fs = std::filesystem;

class Preparation {
 public:
  Preparation(const Config& config, const PrepareOptions& options)
      : config_(config), options_(options), directory_(config.text.directory) {}

  PreparedData run() {
    const bool tokens_given = !config_.tokens.train.empty();
    data::Corpus corpus;
    // Given tokens and a given tokenizer need no text.
    if (!tokens_given || config_.tokenizer.path.empty()) corpus = text();
    tokenizer::Tokenizer tokenizer = this->tokenizer(corpus);
    PreparedData result{corpus.train, corpus.validation, std::move(tokenizer), {}, {}};
    if (tokens_given) {
      result.train_tokens = config_.tokens.train;
      result.validation_tokens = config_.tokens.validation;
    } else {
      result.train_tokens = encode(result.tokenizer, corpus.train, directory_ / "train.npy");
      result.validation_tokens =
          encode(result.tokenizer, corpus.validation, directory_ / "validation.npy");
    }
    return result;
  }

 private:
  // Shows a stage's progress for as long as the result lives.
  std::shared_ptr<ProgressBar> bar(const std::string& label) const {
    if (options_.quiet) return nullptr;
    return std::make_shared<ProgressBar>(label, ProgressBar::Unit::kBytes);
  }

  // True if `stage` is done; with skip_data it must be.
  bool is_done(const fs::path& output, const data::Stage& stage) const {
    const data::Verdict verdict = data::holds(data::manifest_path(output), stage);
    require(verdict.holds || !options_.skip_data, "[--skip-data] expected ", output.string(),
            " to be ready, but ", verdict.why);
    return verdict.holds;
  }

  data::Corpus text() const {
    const TextConfig& text = config_.text;
    data::CorpusOptions options;
    options.source = text.source;
    options.validation = text.validation;
    options.validation_fraction = text.validation_fraction;
    options.document_end = text.document_end;
    options.directory = directory_;
    options.stories_bytes = static_cast<uint64_t>(text.stories_megabytes) * 1'000'000;
    options.stories_seed = static_cast<uint64_t>(text.stories_seed);
    options.base_url = text.base_url;
    options.only_check = options_.skip_data;
    const auto progress = bar("text");
    if (progress) options.progress = progress->callback();
    const SignalGuard guard;  // an interrupted download keeps what has come
    data::Corpus corpus = data::prepare_corpus(options);
    if (const int signal = SignalGuard::received(); signal != 0) {
      throw Interrupted(
          signal, "[data] stopped after the text was prepared; the same command goes on from here");
    }
    return corpus;
  }

  tokenizer::Tokenizer tokenizer(const data::Corpus& corpus) const {
    const TokenizerConfig& settings = config_.tokenizer;
    if (!settings.path.empty()) return tokenizer::Tokenizer::load(settings.path);
    const fs::path output = directory_ / "tokenizer";
    const data::Stage stage{"tokenizer",
                            {{"vocab_size", std::to_string(settings.vocab_size)},
                             {"special_tokens", join(settings.special_tokens, "\n")}},
                            corpus.train,
                            {output / "vocab.json", output / "merges.txt"}};
    if (is_done(output, stage)) return tokenizer::Tokenizer::load(output);
    tokenizer::TrainOptions options;
    options.vocab_size = settings.vocab_size;
    options.special_tokens = settings.special_tokens;
    options.threads = static_cast<int>(settings.threads);
    const auto progress = bar("tokenizer");
    if (progress) options.progress = progress->callback();
    const tokenizer::Tokenizer trained = tokenizer::train(corpus.train, options);
    save_tokenizer(trained, output);
    data::write_manifest(data::manifest_path(output), stage);
    return trained;
  }

  fs::path encode(const tokenizer::Tokenizer& tokenizer, const std::vector<fs::path>& texts,
                  const fs::path& output) const {
    const data::Stage stage{"tokens", {{"tokenizer", tokenizer.fingerprint()}}, texts, {output}};
    if (is_done(output, stage)) return output;
    tokenizer::EncodeOptions options;
    options.threads = static_cast<int>(config_.tokenizer.threads);
    const auto progress = bar(output.filename().string());
    if (progress) options.progress = progress->callback();
    make_directories(directory_);
    data::TokenFileWriter writer(output, tokenizer.vocab_size());
    tokenizer::encode_files(tokenizer, texts, options,
                            [&](std::span<const uint32_t> ids) { writer.append(ids); });
    writer.commit();
    data::write_manifest(data::manifest_path(output), stage);
    return output;
  }

  const Config& config_;
  const PrepareOptions& options_;
  fs::path directory_;
};

}  // namespace

void save_tokenizer(const tokenizer::Tokenizer& tokenizer, const fs::path& directory) {
  const fs::path unfinished = directory.string() + ".unfinished";
  fs::remove_all(unfinished);
  tokenizer.save(unfinished);
  sync_directory(unfinished);
  fs::remove_all(directory);
  fs::rename(unfinished, directory);
  sync_directory(directory.parent_path());
}

PreparedData prepare_data(const Config& config, const PrepareOptions& options) {
  return Preparation(config, options).run();
}

}  // namespace flashstep::train
