// flashstep bench ops: every fused operator beside PyTorch's.
#include <memory>
#include <string>

#include "apps/bench.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/ops.h"

namespace flashstep::apps {
namespace {

struct OpsArguments {
  tools::BenchOpsOptions options;
  std::string directory;
  PeerFlags peer = {.script = "scripts/peers/ops_torch.py"};
};

void run(OpsArguments& arguments) {
  tools::BenchOpsOptions& options = arguments.options;
  options.device = device_or_gpu(options.device);
  options.peer_command = arguments.peer.command();
  run_and_show(tools::bench_ops, options, arguments.directory, "ops");
}

}  // namespace

void add_bench_ops(CLI::App& bench) {
  auto* command =
      bench.add_subcommand("ops", "Every fused operator beside PyTorch's, eager and compiled");
  auto arguments = std::make_shared<OpsArguments>();
  auto& options = arguments->options;
  options.device.clear();
  const CLI::Range count(1, 1 << 24);
  add_names(*command, "--op", options.ops, tools::op_names(),
            "Only these: " + join(tools::op_names()));
  add_shown_number(*command, "--rows", options.rows, count, "Tokens, a multiple of 256");
  add_shown_number(*command, "--width", options.width, count, "d_model, a multiple of 64");
  add_shown_number(*command, "--vocab", options.vocab, count, "Tokens in the vocabulary");
  add_names(*command, "--dtype", options.dtypes, {"fp32", "bf16"}, "fp32 (the default), bf16");
  add_implementations(*command, options.implementations, {"flashstep", "eager", "compiled"});
  add_shown_number(*command, "--turns", options.turns, count,
                   "Of every implementation, one after the other");
  command
      ->add_option("--seconds", options.cell_seconds,
                   "For the timed calls of one implementation and case")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_device(*command, options.device);
  arguments->peer.add_options(*command, "The compiled baseline's program");
  add_directory(*command, arguments->directory);
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
