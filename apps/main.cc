// flashstep: from raw text to a trained Transformer language model. A table of commands; each
// stands in a file of its own beside this one.
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include <CLI/CLI.hpp>

#include "apps/commands.h"
#include "flashstep/base/error.h"

namespace {

using AddCommand = void (*)(CLI::App&);
constexpr AddCommand kCommands[] = {
    flashstep::apps::add_completion,
};

// Exit codes, everywhere: 0 done, 2 the caller's mistake, 1 the machine's failure, 130/143
// interrupted.
enum ExitCode { kMachineFailure = 1, kCallerMistake = 2 };

int fail(int code, const std::string& sentence) {
  std::fprintf(stderr, "flashstep: %s\n", sentence.c_str());
  return code;
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
    return fail(kCallerMistake, error.what() + std::string(" (see --help)"));
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
