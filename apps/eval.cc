// flashstep eval: loss, perplexity and bits per byte of a trained run on tokens or text.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "flashstep/base/progress.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/temporary_folder.h"
#include "flashstep/base/text.h"
#include "flashstep/data/corpus.h"
#include "flashstep/data/cut.h"
#include "flashstep/detail/files.h"
#include "flashstep/detail/token_file.h"
#include "flashstep/error.h"
#include "flashstep/train/evaluate.h"
#include "flashstep/train/prepare_data.h"
#include "flashstep/train/trained_model.h"

namespace flashstep::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInterrupted = "[eval] interrupted";

bool is_token_file(const fs::path& path) {
  return path.extension() == ".npy" ||
         (!fs::is_directory(path) && MappedFile(path).bytes().starts_with("\x93NUMPY"));
}

// The tokens of a text, as `train` makes them of held-out text, in `folder`.
fs::path encoded(const Tokenizer& tokenizer, const fs::path& text, const std::string& document_end,
                 const TemporaryFolder& folder) {
  const fs::path tokens = folder / "tokens.npy";
  const auto texts =
      text_files(text, [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); });
  TokenFileWriter writer(tokens, tokenizer.vocab_size());
  ProgressBar bar("encoding", ProgressBar::Unit::kBytes);
  EncodeOptions options;
  options.progress = interruptible(bar.callback(), kInterrupted);
  options.behind = missing_ends(texts, document_end);
  encode_files(tokenizer, texts, options, [&](auto ids) { writer.append(ids); });
  writer.commit();
  bar.finish();
  return tokens;
}

// Of the text of all tokens but the first, which nothing predicts; special tokens have none.
uint64_t predicted_bytes(const Tokenizer& tokenizer, const TokenFile& tokens) {
  std::vector<uint64_t> bytes_of;
  for (const std::string& token : tokenizer.vocabulary().tokens) bytes_of.push_back(token.size());
  for (const uint32_t id : tokenizer.vocabulary().special_ids) bytes_of[id] = 0;
  uint64_t bytes = 0;
  for (uint64_t i = 1; i < tokens.size(); ++i) bytes += bytes_of[tokens[i]];
  return bytes;
}

void eval_command(const std::string& run, const std::string& path, const std::string& device) {
  const bool is_text = !is_token_file(path);
  TrainedModel trained = load_run(run, device);
  const SignalGuard guard;                // whose end is orderly: the folder goes
  std::optional<TemporaryFolder> folder;  // of a text's tokens
  if (is_text) {
    folder.emplace();
  } else {
    require_tokens_of(trained.tokenizer, path);
  }
  const TokenFile tokens(
      is_text ? encoded(trained.tokenizer, path, trained.config.text.document_end, *folder)
              : fs::path(path),
      trained.tokenizer.vocab_size());
  require(tokens.size() >= 2, "[eval] expected at least 2 tokens in ", path, ", got ",
          tokens.size());
  ProgressBar bar("evaluating", ProgressBar::Unit::kCount);
  EvaluateOptions options;
  options.batch_size = trained.config.train.batch_size;
  options.context_length = trained.config.model.context_length;
  options.device = trained.device;
  options.progress = interruptible(bar.callback(), kInterrupted);
  const double loss =
      evaluate_loss([&](const torch::Tensor& ids,
                        const torch::Tensor& targets) { return trained.model->loss(ids, targets); },
                    tokens, options);
  bar.finish();
  const auto number = [](double value, int digits) {
    return std::isfinite(value) ? fixed(value, digits) : std::string("not finite");
  };
  const double bits = loss / std::numbers::ln2 * static_cast<double>(tokens.size() - 1) /
                      static_cast<double>(predicted_bytes(trained.tokenizer, tokens));
  std::printf("%-12s %s\n", "tokens", with_commas(static_cast<int64_t>(tokens.size() - 1)).c_str());
  std::printf("%-12s %s%s\n", "loss", number(loss, 6).c_str(),
              std::isfinite(loss) ? " nats/token" : "");
  if (!std::isfinite(loss)) {
    std::fprintf(stderr,
                 "NOTE: the loss is not finite, as from the weights of a run that diverged\n");
  }
  std::printf("%-12s %s\n", "perplexity", number(std::exp(loss), 4).c_str());
  std::printf("%-12s %s\n", "bits/byte", number(bits, 4).c_str());
}

}  // namespace

void add_eval(CLI::App& app) {
  auto* command = app.add_subcommand("eval", "Loss of a trained model on tokens or text");
  struct Arguments {
    std::string run, tokens, device;
  };
  auto arguments = std::make_shared<Arguments>();
  command->add_option("run", arguments->run, "Run directory, or one of its checkpoints")
      ->required()
      ->option_text("RUN");
  command
      ->add_option("tokens", arguments->tokens,
                   "Token file, or a text, or a directory of texts, which the run's tokenizer "
                   "encodes")
      ->required()
      ->option_text("TOKENS.npy|TEXT");
  command->add_option("--device", arguments->device, "Default: the run's")
      ->option_text("cpu|cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->callback(
      [arguments] { eval_command(arguments->run, arguments->tokens, arguments->device); });
}

}  // namespace flashstep::apps
