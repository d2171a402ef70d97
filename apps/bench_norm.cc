// flashstep bench norm: RMSNorm beside LayerNorm, by itself.
#include "flashstep/report/bench_norm.h"

#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "flashstep/base/heap.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/measure/gpu.h"

namespace flashstep::apps {
namespace {

struct NormArguments {
  std::string preset, device, directory;
  int64_t rows = 0, calls = 0, turns = 0;  // 0: the preset's
  std::vector<int64_t> widths;
  std::vector<std::string> dtypes, passes, contestants;
  std::string python = "scripts/python", script = "scripts/peers/norm_torch.py";
};

template <typename T>
void take_if_given(const std::vector<T>& given, std::vector<T>& list) {
  if (!given.empty()) list = given;
}

void run(const NormArguments& arguments) {
  std::string device = arguments.device;
  if (device.empty()) device = measure::list_gpus().empty() ? "cpu" : "cuda";
  std::string preset = arguments.preset;
  if (preset.empty()) preset = device == "cpu" ? "cpu" : "2024";
  report::BenchNormOptions options = report::norm_preset(preset);
  options.device = device;
  if (arguments.rows > 0) options.rows = arguments.rows;
  if (arguments.calls > 0) options.calls = arguments.calls;
  if (arguments.turns > 0) options.turns = arguments.turns;
  take_if_given(arguments.widths, options.widths);
  take_if_given(arguments.dtypes, options.dtypes);
  take_if_given(arguments.passes, options.passes);
  take_if_given(arguments.contestants, options.contestants);
  options.peer_command = {arguments.python, arguments.script};
  options.progress = print_progress;
  make_output_directory(arguments.directory);
  keep_freed_memory();  // as flashstep train
  const SignalGuard signals;
  show(report::bench_norm(options), arguments.directory, "norm");
}

}  // namespace

void add_bench_norm(CLI::App& bench) {
  auto* command = bench.add_subcommand("norm", "RMSNorm and LayerNorm by themselves");
  auto arguments = std::make_shared<NormArguments>();
  command
      ->add_option("--preset", arguments->preset,
                   "2024: that handout's 50,000 rows (a GPU's); cpu: 10,000 (a CPU's); quick. "
                   "Flags replace them")
      ->check(CLI::IsMember({"2024", "cpu", "quick"}));
  const auto add_count = [&](const char* flag, int64_t& count, const char* text) {
    command->add_option(flag, count, text)->check(CLI::Range(1, 100'000'000));
  };
  add_count("--rows", arguments->rows, "Rows");
  command->add_option("--width", arguments->widths, "Elements of a row (1024,2048,4096,8192)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 24));
  const auto add_names = [&](const char* flag, std::vector<std::string>& names,
                             const std::vector<std::string>& known, const std::string& text) {
    command->add_option(flag, names, text)->delimiter(',')->check(CLI::IsMember(known));
  };
  add_names("--dtype", arguments->dtypes, {"fp32", "bf16"}, "fp32 (the default), bf16");
  const std::vector<std::string> passes = report::BenchNormOptions().passes;
  add_names("--pass", arguments->passes, passes, "Only these: " + join(passes));
  add_names("--contestants", arguments->contestants, report::norm_contestants(),
            "Only these: " + join(report::norm_contestants()));
  add_count("--calls", arguments->calls, "Timed calls at most, all turns together (1000)");
  add_count("--turns", arguments->turns, "Of every contestant, one after the other (3)");
  command->add_option("--device", arguments->device, "cpu or cuda; the GPU if there is one")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_option("--python", arguments->python, "Python that has torch 2.11")
      ->capture_default_str();
  command->add_option("--peer-script", arguments->script, "The compiled peer's program")
      ->capture_default_str();
  command->add_option(
      "--out", arguments->directory,
      "Also write the tables (.txt, .md, .csv, .json) and pictures into this directory");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
