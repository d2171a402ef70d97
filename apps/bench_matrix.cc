// flashstep bench matrix: training with every attention under every wrapper.
#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "flashstep/attention/implementation_names.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/matrix.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/error.h"

namespace flashstep::apps {
namespace {

struct MatrixArguments {
  ParallelFlags flags;
  tools::BenchMatrixOptions options;  // without axes
};

void run(const MatrixArguments& arguments) {
  if (const auto task = tools::rank_task()) return tools::bench_matrix_rank(*task);
  tools::BenchMatrixOptions options = arguments.options;
  require(!options.plan.train.empty() && !options.plan.validation.empty(),
          "[bench matrix] expected token files: --train T.npy --val V.npy");
  options.axes = tools::matrix_preset(arguments.flags.preset).axes;
  arguments.flags.apply(options.axes);
  options.axes.attention = options.attention.front();
  options.progress = print_progress;
  const SignalGuard signals;
  show(tools::bench_matrix(options), arguments.flags.directory, "matrix");
}

void add_training(CLI::App& command, tools::MatrixPlan& plan) {
  command.add_option("--train", plan.train, "Token file (.npy)");
  command.add_option("--val", plan.validation, "Token file (.npy)");
  command.add_option("--epochs", plan.epochs, "Over the token file")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command.add_option("--max-steps", plan.most_steps, "At most so many an epoch; 0: all")
      ->check(CLI::Range(0, 1'000'000'000))
      ->capture_default_str();
  command.add_option("--val-tokens", plan.validation_tokens, "Only the first so many; 0: all")
      ->check(CLI::Range(0, 1'000'000'000))
      ->capture_default_str();
  command.add_option("--lr", plan.learning_rate, "Of AdamW, constant")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

}  // namespace

void add_bench_matrix(CLI::App& bench) {
  auto* command =
      bench.add_subcommand("matrix", "Training with every attention under every wrapper");
  auto arguments = std::make_shared<MatrixArguments>();
  auto& options = arguments->options;
  arguments->flags.add_options(*command);
  options.attention = {"auto", "naive"};
  command
      ->add_option("--attention", options.attention,
                   "Implementations: " + join(attention_implementations()))
      ->delimiter(',')
      ->check(CLI::IsMember(attention_implementations()))
      ->capture_default_str();
  add_training(*command, options.plan);
  add_wrappers(*command, options.wrappers, options.bucket_megabytes);
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
