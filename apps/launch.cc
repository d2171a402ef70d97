// flashstep launch: the ranks of a job on this machine.
#include "flashstep/comm/launch.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "apps/commands.h"
#include "apps/shell_words.h"
#include "flashstep/error.h"

namespace flashstep::apps {
namespace {

struct LaunchArguments {
  LaunchOptions options;
  std::vector<std::string> command;
  bool no_label = false;
};

bool is_in_path(const std::string& program) {
  std::istringstream path(std::getenv("PATH") == nullptr ? "" : std::getenv("PATH"));
  for (std::string folder; std::getline(path, folder, ':');)
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

// A command of flashstep; else a program, as a shell would find it.
std::vector<std::string> command_of_ranks(const CLI::App& app, std::vector<std::string> command) {
  const std::string& first = command.front();
  if (first.find('/') != std::string::npos) return command;
  const auto is_first = [&](const CLI::App* known) { return known->check_name(first); };
  if (first.starts_with('-') || !app.get_subcommands(is_first).empty()) {
    command.insert(command.begin(), "/proc/self/exe");
    return command;
  }
  require(is_in_path(first),
          "[launch] expected a command of flashstep, a program in PATH, or one with a slash in its "
          "name (./",
          first, "), got ", first);
  return command;
}

void launch_command(const CLI::App& app, const LaunchArguments& arguments) {
  const char* outer = std::getenv(kLaunchVariable);
  require(outer == nullptr,
          "[launch] expected one launch around all ranks, got a launch inside of ",
          outer == nullptr ? "" : outer);
  LaunchOptions options = arguments.options;
  options.command = command_of_ranks(app, arguments.command);
  options.label = !arguments.no_label;
  std::vector<std::string> before = own_words();
  before.resize(before.size() - std::min(before.size(), arguments.command.size()));
  ::setenv(kLaunchVariable, shell_words(before).c_str(), /*overwrite=*/1);
  const int code = launch(options);
  if (code != 0) throw ExitCode{code};
}

}  // namespace

void add_launch(CLI::App& app) {
  auto arguments = std::make_shared<LaunchArguments>();
  CLI::App* command = app.add_subcommand(
      "launch", "Run a command as several ranks on this machine: launch -n 4 -- train ...");
  command->add_option("-n,--ranks", arguments->options.ranks, "How many")
      ->required()
      ->check(CLI::Range(1, 4096));
  command
      ->add_option("COMMAND", arguments->command,
                   "After --: what each rank runs, a command of flashstep (train ...) or another "
                   "program (./example_data_parallel, python3 train.py)")
      ->required();
  command
      ->add_option(
          "--stop-seconds", arguments->options.stop_seconds,
          "When a rank has failed: how long the others may take to end after SIGTERM, before they "
          "are killed; on GPUs more than parallel.silence_seconds and 10")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_flag("--no-label", arguments->no_label, "Leave out \"[rank 2] \" before each line");
  command->footer(
      "When a rank ends with an error, the others are stopped and its exit code is returned.\n"
      "SIGINT and SIGTERM are passed on, and ranks may save for as long as that takes; by a second "
      "one they end at once, or are killed.\n"
      "Over several machines: torchrun, mpirun or srun (examples/launch/).");
  command->callback([&app, arguments] { launch_command(app, *arguments); });
}

}  // namespace flashstep::apps
