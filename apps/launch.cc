// flashstep launch: the ranks of a job on this machine.
#include "flashstep/comm/launch.h"

#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"

namespace flashstep::apps {
namespace {

struct LaunchArguments {
  comm::LaunchOptions options;
  std::string program = "/proc/self/exe";
  std::vector<std::string> command;
  bool no_label = false;
};

void launch_command(LaunchArguments arguments) {
  comm::LaunchOptions options = arguments.options;
  options.command = {arguments.program};
  options.command.insert(options.command.end(), arguments.command.begin(), arguments.command.end());
  options.label = !arguments.no_label;
  const int code = comm::launch(options);
  if (code != 0) throw ExitCode{code};
}

}  // namespace

void add_launch(CLI::App& app) {
  auto arguments = std::make_shared<LaunchArguments>();
  CLI::App* command = app.add_subcommand(
      "launch", "Run a command as several ranks on this machine: launch -n 4 -- train ...");
  command->add_option("-n,--ranks", arguments->options.ranks, "How many")->required();
  command->add_option("COMMAND", arguments->command, "After --: what each rank runs")->required();
  command
      ->add_option("--program", arguments->program,
                   "Run this program with the arguments after --, instead of flashstep itself")
      ->option_text("PROGRAM");
  command
      ->add_option("--stop-seconds", arguments->options.stop_seconds,
                   "How long a rank may take to end after SIGTERM, before it is killed")
      ->capture_default_str();
  command->add_flag("--no-label", arguments->no_label, "Leave out \"[rank 2] \" before each line");
  command->footer(
      "When a rank ends with an error, the others are stopped and its exit code is returned.\n"
      "Over several machines: torchrun, mpirun or srun (examples/launch/).");
  command->callback([arguments] { launch_command(*arguments); });
}

}  // namespace flashstep::apps
