// flashstep train: the whole pipeline of one JSON file.
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "apps/bench.h"
#include "apps/commands.h"
#include "apps/plan_flags.h"
#include "apps/shell_words.h"
#include "flashstep/base/text.h"
#include "flashstep/checkpoint.h"
#include "flashstep/detail/environment.h"
#include "flashstep/error.h"
#include "flashstep/train/config.h"
#include "flashstep/train/pipeline.h"
#include "flashstep/train/run_directory.h"

namespace flashstep::apps {
namespace {

struct TrainArguments {
  std::string config, run, attention, wrapper, device, resume;
  std::vector<std::string> assignments;
  bool skip_data = false, verbose = false, plan = false;
  PlanFlags planned;
};

// What --resume was given: nothing, as it stands alone, or after "=".
enum class Resume { kNo, kAuto, kMust };

Resume resume_of(const std::string& given) {
  if (given.empty()) return Resume::kNo;
  if (given == "auto") return Resume::kAuto;
  if (given == "must") return Resume::kMust;
  try {  // true, for the flag alone, and the parser's other words for yes and no
    return CLI::detail::to_flag_value(given) > 0 ? Resume::kAuto : Resume::kNo;
  } catch (const std::invalid_argument&) {
    throw UserError(
        str("expected --resume alone, --resume=auto or --resume=must, got --resume=", given));
  }
}

bool has_checkpoint(const std::filesystem::path& run) {
  std::error_code error;
  return std::filesystem::is_directory(run / "checkpoints", error) &&
         !list_checkpoints(run / "checkpoints").empty();
}

// "; did you mean runs/tiny?": a run beside `run` that can be resumed.
std::string meant_instead(const std::filesystem::path& run) {
  const auto folder = run.has_parent_path() ? run.parent_path() : std::filesystem::path(".");
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    try {
      if (has_checkpoint(entry.path())) names.push_back(entry.path().filename().string());
    } catch (const MachineError&) {  // what cannot be listed was not meant
    }
  }
  const std::string meant = nearest(run.filename().string(), names);
  if (meant.empty()) return "";
  return str("; did you mean ", run.has_parent_path() ? (folder / meant).string() : meant, "?");
}

// "go on with: flashstep train CONFIG --run RUN --resume". What another launcher needs is not
// known.
std::string how_to_go_on(const TrainArguments& arguments, const std::filesystem::path& run) {
  std::vector<std::string> words = {"train", arguments.config};
  for (const std::string& assignment : arguments.assignments) {
    words.insert(words.end(), {"--set", assignment});
  }
  if (arguments.skip_data) words.emplace_back("--skip-data");
  if (arguments.verbose) words.emplace_back("--verbose");
  words.insert(words.end(), {"--run", run.string(), "--resume"});
  if (const char* launch = std::getenv(kLaunchVariable)) {
    return str("go on with: ", launch, " ", shell_words(words));
  }
  const std::vector<std::string> own = own_words();
  words.insert(words.begin(), own.empty() ? "flashstep" : own.front());
  const bool is_alone = read_environment().world_size == 1;
  return str("go on with", is_alone ? "" : " your launcher and", ": ", shell_words(words));
}

void train_command(TrainArguments arguments) {
  std::signal(SIGPIPE, SIG_IGN);  // a run does not end because nobody reads what it says
  const auto set = [&](const char* field, const std::string& value) {
    if (!value.empty()) arguments.assignments.push_back(str(field, "=", value));
  };
  set("model.attention", arguments.attention);
  set("parallel.wrapper", arguments.wrapper);
  set("train.device", arguments.device);
  const Config config = load_config(arguments.config, arguments.assignments);
  if (arguments.plan) return show(tools::plan_report(arguments.planned.inputs(config)), "", "plan");
  require(!arguments.planned.any(), "expected --plan with --ranks, --card and --memory");

  TrainOptions options;
  const Resume resume = resume_of(arguments.resume);
  options.resume = resume != Resume::kNo;
  options.skip_data = arguments.skip_data;
  options.run_directory =
      arguments.run.empty()
          ? default_run_directory(std::filesystem::path(arguments.config).stem(), options.resume)
          : std::filesystem::path(arguments.run);
  const bool is_first = read_environment().rank == 0;
  // Schedulers start a job for the first time as they start it again: that goes on, and is said
  // before the first line and after the last one.
  const bool is_anew = is_first && options.resume && !has_checkpoint(options.run_directory) &&
                       others_entry(options.run_directory).empty();
  std::string began_anew;
  if (is_anew) {
    const std::string meant = meant_instead(options.run_directory);
    require(resume != Resume::kMust, "[resume] expected a checkpoint in ",
            options.run_directory.string(), ", as --resume=must asks, got none", meant);
    began_anew = str("NOTE: --resume found no checkpoint in ", options.run_directory.string(),
                     ": this run begins at step 0", meant);
    std::fprintf(stderr, "\n%s\n\n", began_anew.c_str());
  }
  if (is_first) {
    if (arguments.verbose) std::printf("%s", write_json(config).c_str());
    std::printf("run directory: %s\n", options.run_directory.c_str());
    std::fflush(stdout);
  }
  const LoopResult result = [&] {
    try {
      return train(config, options);
    } catch (const Interrupted& interrupted) {
      if (!is_first) throw;
      throw Interrupted(interrupted.signal(), str(interrupted.what(), "; ",
                                                  how_to_go_on(arguments, options.run_directory)));
    }
  }();
  if (!is_first) return;
  const auto loss = [](double value) {
    return std::isfinite(value) ? fixed(value, 3) : std::string("not finite");
  };
  std::printf("done: %s steps, held-out loss %s -> %s, all in %s\n",
              with_commas(result.steps).c_str(), loss(result.first_held_out_loss).c_str(),
              loss(result.held_out_loss).c_str(), options.run_directory.c_str());
  if (!std::isfinite(result.held_out_loss)) {
    std::fprintf(stderr,
                 "NOTE: the run diverged, its loss is not finite: try a lower learning "
                 "rate or a longer warm-up\n");
  }
  if (is_anew) std::printf("%s\n", began_anew.c_str());
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
                    "Go on from the newest checkpoint as if never stopped; where there is none "
                    "yet, begin (--resume=auto, the same) or refuse (--resume=must)");
  command->add_flag("--skip-data", arguments->skip_data,
                    "Make no data; refuse if any is missing or disagrees");
  command->add_flag("--verbose", arguments->verbose,
                    "Print the whole config first (RUN/config.json has it, too)");
  command->add_option("--attention", arguments->attention, "Short for --set model.attention=NAME")
      ->option_text("NAME");
  command->add_option("--wrapper", arguments->wrapper, "Short for --set parallel.wrapper=NAME")
      ->option_text("NAME");
  command->add_option("--device", arguments->device, "Short for --set train.device=...")
      ->option_text("cpu|cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_flag("--plan", arguments->plan,
                    "Start nothing: print what each rank will hold with every train.recompute, "
                    "whether it fits, and how long a step takes");
  arguments->planned.add_options(*command);
  command->footer([] { return "Fields of CONFIG.json:\n" + describe_fields(Config()); });
  command->callback([arguments] { train_command(*arguments); });
}

}  // namespace flashstep::apps
