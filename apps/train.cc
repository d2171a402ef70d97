// flashstep train: the whole pipeline of one JSON file.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "flashstep/base/text.h"
#include "flashstep/comm/environment.h"
#include "flashstep/train/config.h"
#include "flashstep/train/pipeline.h"
#include "flashstep/train/run_directory.h"

namespace flashstep::apps {
namespace {

struct TrainArguments {
  std::string config, run, attention, wrapper, device;
  std::vector<std::string> assignments;
  bool resume = false, skip_data = false;
};

void train_command(TrainArguments arguments) {
  const auto set = [&](const char* field, const std::string& value) {
    if (!value.empty()) arguments.assignments.push_back(str(field, "=", value));
  };
  set("model.attention", arguments.attention);
  set("parallel.wrapper", arguments.wrapper);
  set("train.device", arguments.device);
  const train::Config config = train::load_config(arguments.config, arguments.assignments);

  train::TrainOptions options;
  options.resume = arguments.resume;
  options.skip_data = arguments.skip_data;
  options.run_directory =
      arguments.run.empty() ? train::default_run_directory(
                                  std::filesystem::path(arguments.config).stem(), arguments.resume)
                            : std::filesystem::path(arguments.run);
  const bool is_first = comm::read_environment().rank == 0;
  if (is_first) {
    std::printf("%s", write_json(config).c_str());
    std::printf("run directory: %s\n", options.run_directory.c_str());
    std::fflush(stdout);
  }
  const train::LoopResult result = train::train(config, options);
  if (!is_first) return;
  std::printf("done: %s steps, held-out loss %s -> %s, all in %s\n",
              with_commas(result.steps).c_str(), fixed(result.first_held_out_loss, 3).c_str(),
              fixed(result.held_out_loss, 3).c_str(), options.run_directory.c_str());
}

}  // namespace

void add_train(CLI::App& app) {
  auto* command = app.add_subcommand(
      "train", "Train a model: text, tokenizer, tokens, training, from one JSON file");
  auto arguments = std::make_shared<TrainArguments>();
  command->add_option("config", arguments->config, "JSON file (configs/ has some; fields below)")
      ->required()
      ->option_text("CONFIG.json");
  command
      ->add_option("--set", arguments->assignments,
                   "Override a field: --set train.steps=100 (repeatable)")
      ->option_text("a.b=c")
      ->allow_extra_args(false);
  command
      ->add_option("--run", arguments->run,
                   "Run directory (default: runs/CONFIG, or the next free runs/CONFIG-2, ...)")
      ->option_text("DIR");
  command->add_flag("--resume", arguments->resume,
                    "Go on from the newest checkpoint as if never stopped");
  command->add_flag("--skip-data", arguments->skip_data,
                    "Make no data; refuse if any is missing or disagrees");
  command->add_option("--attention", arguments->attention, "Short for --set model.attention=NAME")
      ->option_text("NAME");
  command->add_option("--wrapper", arguments->wrapper, "Short for --set parallel.wrapper=NAME")
      ->option_text("NAME");
  command->add_option("--device", arguments->device, "Short for --set train.device=...")
      ->option_text("cpu|cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->footer([] { return "Fields of CONFIG.json:\n" + describe_fields(train::Config()); });
  command->callback([arguments] { train_command(*arguments); });
}

}  // namespace flashstep::apps
