// flashstep: from raw text to a trained Transformer language model. A table of commands; each
// stands in a file of its own beside this one.
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/commands.h"
#include "flashstep/base/error.h"
#include "flashstep/base/text.h"

namespace {

using AddCommand = void (*)(CLI::App&);
// In the order of --help: what people do first comes first.
constexpr AddCommand kCommands[] = {
    flashstep::apps::add_train,      flashstep::apps::add_launch, flashstep::apps::add_generate,
    flashstep::apps::add_eval,       flashstep::apps::add_plot,   flashstep::apps::add_tokenizer,
    flashstep::apps::add_data,       flashstep::apps::add_bench,  flashstep::apps::add_info,
    flashstep::apps::add_completion,
};

// Exit codes, everywhere: 0 done, 2 the caller's mistake, 1 the machine's failure, 130/143
// interrupted.
enum ExitCode { kMachineFailure = 1, kCallerMistake = 2 };

int fail(int code, const std::string& sentence) {
  std::fprintf(stderr, "flashstep: %s\n", sentence.c_str());
  return code;
}

// What was wrong with the command line; a mistyped command gets the nearest one.
std::string usage_mistake(const CLI::App& app, int argc, char** argv,
                          const CLI::ParseError& error) {
  if (app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-') {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands(nullptr))
      names.push_back(command->get_name());
    const std::string meant = flashstep::nearest(argv[1], names);
    return flashstep::str("unknown command \"", argv[1], "\"; ",
                          meant.empty() ? "expected one of " + flashstep::join(names)
                                        : "did you mean \"" + meant + "\"?");
  }
  return flashstep::str(error.what(), " (see --help)");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Train Transformer language models in C++: from raw text to samples.", "flashstep");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Print the help of every command");
  for (const AddCommand add : kCommands) add(app);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
    return fail(kCallerMistake, usage_mistake(app, argc, argv, error));
  } catch (const flashstep::apps::ExitCode& exit) {
    return exit.code;
  } catch (const flashstep::Interrupted& interrupted) {
    return fail(128 + interrupted.signal(), interrupted.what());
  } catch (const flashstep::UserError& error) {
    return fail(kCallerMistake, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kMachineFailure, "out of memory");
  } catch (const std::exception& error) {
    return fail(kMachineFailure, error.what());
  }
}
