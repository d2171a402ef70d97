// flashstep eval: loss and perplexity of a trained run on a token file.
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

#include "apps/commands.h"
#include "flashstep/base/progress.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/token_file.h"
#include "flashstep/train/evaluate.h"
#include "flashstep/train/prepare_data.h"
#include "flashstep/train/trained_model.h"

namespace flashstep::apps {
namespace {

void eval_command(const std::string& run, const std::string& path, const std::string& device) {
  TrainedModel trained = load_run(run, device);
  require_tokens_of(trained.tokenizer, path);
  const TokenFile tokens(path, trained.tokenizer.vocab_size());
  ProgressBar bar("evaluating", ProgressBar::Unit::kCount);
  EvaluateOptions options;
  options.batch_size = trained.config.train.batch_size;
  options.context_length = trained.config.model.context_length;
  options.device = trained.device;
  options.progress = bar.callback();
  const double loss = evaluate_loss(
      [&](const torch::Tensor& ids) { return trained.model->forward(ids); }, tokens, options);
  bar.finish();
  const auto number = [](double value, int digits) {
    return std::isfinite(value) ? fixed(value, digits) : std::string("not finite");
  };
  std::printf("%-12s %s\n", "tokens", with_commas(static_cast<int64_t>(tokens.size() - 1)).c_str());
  std::printf("%-12s %s%s\n", "loss", number(loss, 6).c_str(),
              std::isfinite(loss) ? " nats/token" : "");
  if (!std::isfinite(loss)) {
    std::fprintf(stderr,
                 "NOTE: the loss is not finite, as from the weights of a run that diverged\n");
  }
  std::printf("%-12s %s\n", "perplexity", number(std::exp(loss), 4).c_str());
}

}  // namespace

void add_eval(CLI::App& app) {
  auto* command = app.add_subcommand("eval", "Loss and perplexity of a trained model on tokens");
  struct Arguments {
    std::string run, tokens, device;
  };
  auto arguments = std::make_shared<Arguments>();
  command->add_option("run", arguments->run, "Run directory")->required()->option_text("RUN");
  command->add_option("tokens", arguments->tokens, "Token file")
      ->required()
      ->option_text("TOKENS.npy");
  command->add_option("--device", arguments->device, "Default: the run's")
      ->option_text("cpu|cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->callback(
      [arguments] { eval_command(arguments->run, arguments->tokens, arguments->device); });
}

}  // namespace flashstep::apps
