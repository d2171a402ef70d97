#include "apps/program.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/commands.h"
#include "apps/usage.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/terminal.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep::apps {
namespace {

using AddCommand = void (*)(CLI::App&);
// In the order of --help: what people do first comes first.
constexpr AddCommand kCommands[] = {
    add_train,     add_launch,    add_generate, add_eval,  add_export,     add_import,
    add_plot,      add_tokenizer, add_data,     add_bench, add_profile,    add_memory,
    add_precision, add_account,   add_report,   add_info,  add_completion,
};

// Exit codes, everywhere: 0 done, 2 the caller's mistake, 1 the machine's failure, 128 + n ended by
// signal n (run_main).
constexpr int kMachineFailure = 1, kCallerMistake = 2;

int fail(int code, const std::string& sentence) {
  std::cout.flush();  // before the sentence, where both go to one file
  std::fflush(stdout);
  std::fprintf(stderr, "flashstep: %s\n", sentence.c_str());
  return code;
}

// What a command printed may be in a buffer still; a full disk shows when that is written. Of a
// terminal that was closed meanwhile (under nohup) nobody reads any more.
int end_output(int code, bool to_terminal) {
  errno = 0;
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (written || code != 0) return code;
  if (errno == 0) {  // it failed while there was more to print: the next byte fails as well
    std::clearerr(stdout);
    std::fputc('\n', stdout);
    std::fflush(stdout);
  }
  if (errno == EIO && to_terminal) return code;
  return fail(kMachineFailure, str("the output could not be written", errno != 0 ? ": " : "",
                                   errno != 0 ? std::strerror(errno) : ""));
}

int run(int argc, char** argv) {
  CLI::App app("Train Transformer language models in C++: from raw text to samples.", "flashstep");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Print the help of every command");
  app.set_version_flag("--version", str("flashstep ", FLASHSTEP_VERSION), "Print the version");
  app.footer(
      "Exit codes: 0 done; 2 a mistake in arguments, config or input files; 1 a failure of the\n"
      "machine (a full disk, a limit on files, output that could not be written among them);\n"
      "128 + n ended by signal n: 129 SIGHUP (the terminal was closed), 130 SIGINT (Ctrl-C),\n"
      "143 SIGTERM, 152 SIGXCPU (the limit of CPU time). Training saves before it ends so, other\n"
      "commands say what they keep. Each comes with one sentence.");
  for (const AddCommand add : kCommands) add(app);
  refuse_impossible_values(app);
  static char help[] = "--help";
  std::vector<char*> words(argv, argv + argc);
  if (argc > 1 && std::strcmp(argv[1], "help") == 0) {  // "help bench step": "bench step --help"
    const CLI::App* command = &app;
    for (int i = 2; i < argc; ++i) {
      const auto found = command->get_subcommands(
          [&](const CLI::App* known) { return known->check_name(argv[i]); });
      require(!found.empty(), "[help] expected a command, such as train or bench step, got ",
              argv[i]);
      command = found.front();
    }
    words.erase(words.begin() + 1);
    words.push_back(help);
    argv = words.data();
  }
  try {
    app.parse(words_to_parse(argc, argv));
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      std::ostringstream help;  // or the version
      const int code = app.exit(error, help, std::cerr);
      std::cout << wrapped(help.str(), terminal_columns(stdout));
      return code;
    }
    return fail(kCallerMistake, usage_mistake(app, argc, argv, error));
  } catch (const ExitCode& exit) {
    return exit.code;
  }
}

}  // namespace

int run_program(int argc, char** argv) {
  end_with_a_sentence("flashstep");
  const bool to_terminal = isatty(STDOUT_FILENO) == 1;  // a closed one is none any more
  return end_output(run_main("flashstep", [&] { return run(argc, argv); }), to_terminal);
}

}  // namespace flashstep::apps
