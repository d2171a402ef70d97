// flashstep bench norm: RMSNorm beside LayerNorm, by itself.
#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/norm.h"

namespace flashstep::apps {
namespace {

struct NormArguments {
  std::string preset, directory;
  tools::BenchNormOptions options;
  PeerFlags peer = {.script = "scripts/peers/ops_torch.py"};
};

void run(CLI::App& command, NormArguments& arguments) {
  tools::BenchNormOptions& options = arguments.options;
  options.device = device_or_gpu(options.device);
  if (arguments.preset.empty()) arguments.preset = options.device == "cpu" ? "cpu" : "2024";
  apply_preset(command, arguments.preset);
  options.peer_command = arguments.peer.command();
  run_and_show(tools::bench_norm, options, arguments.directory, "norm");
}

}  // namespace

void add_bench_norm(CLI::App& bench) {
  auto* command = bench.add_subcommand("norm", "RMSNorm and LayerNorm by themselves");
  auto arguments = std::make_shared<NormArguments>();
  tools::BenchNormOptions& options = arguments->options;
  options.device.clear();
  add_choice(*command, "--preset", arguments->preset, {"2024", "cpu", "quick"},
             "2024: that handout's 50,000 rows (a GPU's); cpu: 10,000 (a CPU's); quick. "
             "Flags replace them");
  const CLI::Range count(1, 100'000'000);
  add_number(*command, "--rows", options.rows, count, "Rows");
  add_number(*command, "--width", options.widths, {1, 1 << 24},
             "Elements of a row (1024,2048,4096,8192)")
      ->delimiter(',');
  add_names(*command, "--dtype", options.dtypes, {"fp32", "bf16"}, "fp32 (the default), bf16");
  const std::vector<std::string> passes = options.passes;
  add_names(*command, "--pass", options.passes, passes, "Only these: " + join(passes));
  add_implementations(*command, options.implementations, tools::norm_implementations());
  add_number(*command, "--calls", options.calls, count,
             "Timed calls at most, all turns together (1000)");
  add_number(*command, "--turns", options.turns, count,
             "Of every implementation, one after the other (3)");
  command
      ->add_option("--seconds", options.cell_seconds,
                   "For the timed calls of one implementation and case (2)")
      ->check(CLI::PositiveNumber);
  add_device(*command, options.device);
  arguments->peer.add_options(*command, "The compiled baseline's program");
  add_directory(*command, arguments->directory);
  command->callback([=] { run(*command, *arguments); });
}

}  // namespace flashstep::apps
