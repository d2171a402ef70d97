// The commands of the `flashstep` program: each adds its subcommand, with the callback that runs
// it.
#pragma once

#include <CLI/CLI.hpp>

namespace flashstep::apps {

// Thrown by a command that has said everything itself.
struct ExitCode {
  int code;
};

void add_account(CLI::App& app);
void add_bench(CLI::App& app);
void add_completion(CLI::App& app);
void add_data(CLI::App& app);
void add_eval(CLI::App& app);
void add_export(CLI::App& app);
void add_generate(CLI::App& app);
void add_import(CLI::App& app);
void add_info(CLI::App& app);
void add_launch(CLI::App& app);
void add_memory(CLI::App& app);
void add_plot(CLI::App& app);
void add_precision(CLI::App& app);
void add_profile(CLI::App& app);
void add_report(CLI::App& app);
void add_tokenizer(CLI::App& app);
void add_train(CLI::App& app);

}  // namespace flashstep::apps
