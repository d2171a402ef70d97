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
  std::string preset, device, directory;
  tools::BenchNormOptions given = {
      .rows = 0, .widths = {}, .dtypes = {}, .passes = {}, .calls = 0, .turns = 0};
  PeerFlags peer = {.script = "scripts/peers/ops_torch.py"};
};

void run(const NormArguments& arguments) {
  const std::string device = device_or_gpu(arguments.device);
  std::string preset = arguments.preset;
  if (preset.empty()) preset = device == "cpu" ? "cpu" : "2024";
  tools::BenchNormOptions options = tools::norm_preset(preset);
  const tools::BenchNormOptions& given = arguments.given;
  options.device = device;
  take_if_given(given.rows, options.rows);
  take_if_given(given.calls, options.calls);
  take_if_given(given.turns, options.turns);
  take_if_given(given.widths, options.widths);
  take_if_given(given.dtypes, options.dtypes);
  take_if_given(given.passes, options.passes);
  take_if_given(given.implementations, options.implementations);
  options.peer_command = arguments.peer.command();
  run_and_show(tools::bench_norm, options, arguments.directory, "norm");
}

}  // namespace

void add_bench_norm(CLI::App& bench) {
  auto* command = bench.add_subcommand("norm", "RMSNorm and LayerNorm by themselves");
  auto arguments = std::make_shared<NormArguments>();
  auto& given = arguments->given;
  add_choice(*command, "--preset", arguments->preset, {"2024", "cpu", "quick"},
             "2024: that handout's 50,000 rows (a GPU's); cpu: 10,000 (a CPU's); quick. "
             "Flags replace them");
  const CLI::Range count(1, 100'000'000);
  add_number(*command, "--rows", given.rows, count, "Rows");
  add_number(*command, "--width", given.widths, {1, 1 << 24},
             "Elements of a row (1024,2048,4096,8192)")
      ->delimiter(',');
  add_names(*command, "--dtype", given.dtypes, {"fp32", "bf16"}, "fp32 (the default), bf16");
  const std::vector<std::string> passes = tools::BenchNormOptions().passes;
  add_names(*command, "--pass", given.passes, passes, "Only these: " + join(passes));
  add_implementations(*command, given.implementations, tools::norm_implementations());
  add_number(*command, "--calls", given.calls, count,
             "Timed calls at most, all turns together (1000)");
  add_number(*command, "--turns", given.turns, count,
             "Of every implementation, one after the other (3)");
  add_device(*command, arguments->device);
  arguments->peer.add_options(*command, "The compiled baseline's program");
  add_directory(*command, arguments->directory);
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
