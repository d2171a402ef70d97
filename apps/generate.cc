// flashstep generate: text from a trained run.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/commands.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/terminal.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/train/trained_model.h"

namespace flashstep::apps {
namespace {

// Without the line break that `echo` or an editor puts behind it.
std::string standard_input() {
  std::string text(std::istreambuf_iterator<char>(std::cin), {});
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

// What the run's products computed in on a GPU; nullopt: float32.
std::optional<at::ScalarType> lower_precision(const TrainedModel& trained) {
  const Precision precision = precision_by_name(trained.config.train.precision);
  if (!trained.device.is_cuda() || precision == Precision::kFloat32) return std::nullopt;
  return precision == Precision::kBFloat16 ? at::kBFloat16 : at::kHalf;
}

// Half of the memory, read in half of the time.
void round_matrices(TrainedModel& trained, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : trained.model->parameters()) {
    if (parameter.dim() > 1) parameter.set_data(parameter.to(dtype));
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  auto* command = app.add_subcommand("generate", "Let a trained model write");
  struct Arguments {
    std::string run, prompt, device;
    std::vector<std::string> stops;
    SamplingConfig sampling;
  };
  auto arguments = std::make_shared<Arguments>();
  SamplingConfig& sampling = arguments->sampling;
  command->add_option("run", arguments->run, "Run directory, or one of its checkpoints")
      ->required()
      ->option_text("RUN");
  command
      ->add_option("--prompt", arguments->prompt,
                   "Text that the model continues; empty: it begins a document; -: standard input")
      ->required()
      ->option_text("TEXT REQUIRED");
  command->add_option("--max-tokens", sampling.max_tokens, "Tokens after the prompt")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000}));
  command->add_option("--temperature", sampling.temperature, "0: always the likeliest token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  command->add_option("--top-k", sampling.top_k, "Only the k likeliest tokens; 0: all")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{4'000'000}));
  command
      ->add_option("--top-p", sampling.top_p,
                   "Only the likeliest tokens that reach this probability")
      ->capture_default_str()
      ->check(CLI::Range(1e-6, 1.0));
  command
      ->add_option("--stop", arguments->stops,
                   "Text before which the writing ends, as it does before the end of a document "
                   "(repeatable)")
      ->option_text("TEXT")
      ->allow_extra_args(false);
  command->add_option("--seed", sampling.seed, "The same seed writes the same text")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, INT64_MAX));
  command->add_option("--device", arguments->device, "Default: the run's")
      ->option_text("cpu|cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->callback([arguments] {
    TrainedModel trained = load_run(arguments->run, arguments->device);
    const std::string prompt =
        arguments->prompt == "-" ? standard_input() : std::move(arguments->prompt);
    const auto ids = static_cast<int64_t>(trained.tokenizer.encode(prompt).size());
    const int64_t context = trained.model->config().context_length;
    if (ids > context) {
      std::fprintf(stderr,
                   "[generate] NOTE: of the prompt's %s tokens the model sees the last %s\n",
                   with_commas(ids).c_str(), with_commas(context).c_str());
    }
    const auto lower = lower_precision(trained);
    std::optional<AutocastGuard> autocast;  // the prompt's pass is as one of training
    if (lower) {
      round_matrices(trained, *lower);
      autocast.emplace(at::kCUDA, *lower);
    }
    size_t printed = 0;
    const auto print = [&](const std::string& part) {
      const std::string shown = shown_on(stdout, part);
      std::fwrite(shown.data(), 1, shown.size(), stdout);  // it may have zero bytes
      std::fflush(stdout);
      printed += part.size();
    };
    std::string text;
    int signal = 0;
    {
      const SignalGuard guard;
      text = write_sample(trained.model, trained.tokenizer, prompt, arguments->sampling,
                          trained.config.text.document_end, arguments->stops,
                          [&](const std::string& part) {
                            print(part);
                            return SignalGuard::received() == 0 && std::ferror(stdout) == 0;
                          });
      signal = SignalGuard::received();
    }
    print(text.substr(printed) +
          "\n");  // without a guard: who stopped reading (head) ends it without a sentence
    if (signal != 0)
      throw Interrupted(signal, "[generate] interrupted; what was written so far is printed");
  });
}

}  // namespace flashstep::apps
