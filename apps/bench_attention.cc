// flashstep bench attention: attention beside its peers, in presets.
#include "flashstep/report/bench_attention.h"

#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "flashstep/base/heap.h"
#include "flashstep/base/progress.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"

namespace flashstep::apps {
namespace {

struct AttentionArguments {
  report::BenchAttentionOptions options;
  std::vector<std::string> passes, pairs;
  std::string python = "scripts/python", script = "scripts/peers/attention_torch.py";
  std::string directory;
};

// "128:64": queries and keys.
std::pair<int64_t, int64_t> pair_of(const std::string& text) {
  const size_t colon = text.find(':');
  const auto number = [&](const std::string& part) {
    const bool digits =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos;
    require(digits && part.find_first_not_of('0') != part.npos,
            "[bench attention] expected pairs like 128:64, got \"", text, "\"");
    return static_cast<int64_t>(std::stoll(part));
  };
  require(colon != text.npos, "[bench attention] expected pairs like 128:64, got \"", text, "\"");
  return {number(text.substr(0, colon)), number(text.substr(colon + 1))};
}

void run(AttentionArguments& arguments) {
  auto& options = arguments.options;
  if (options.device.empty()) options.device = measure::list_gpus().empty() ? "cpu" : "cuda";
  make_output_directory(arguments.directory);
  keep_freed_memory();  // as flashstep train does
  for (const auto& pass : arguments.passes)
    options.filter.passes.push_back(report::pass_by_name(pass));
  for (const auto& pair : arguments.pairs) options.pairs.push_back(pair_of(pair));
  if (!arguments.script.empty()) options.peer_command = {arguments.python, arguments.script};

  const SignalGuard signals;
  ProgressBar bar("attention " + options.preset, ProgressBar::Unit::kCount);
  options.progress = [&](uint64_t done, uint64_t total, const std::string& note) {
    bar.update(done, total, note);
  };
  const auto report = report::bench_attention(options);
  bar.finish();
  show(report, arguments.directory, options.preset);
}

}  // namespace

void add_bench_attention(CLI::App& bench) {
  auto* command = bench.add_subcommand("attention", "Attention beside its peers, in presets");
  auto arguments = std::make_shared<AttentionArguments>();
  auto& options = arguments->options;
  options.device.clear();
  std::vector<std::string> presets = report::attention_presets();
  presets.emplace_back("grid");
  command->add_option("--preset", options.preset, join(presets))
      ->check(CLI::IsMember(presets))
      ->capture_default_str();
  command->add_option("--device", options.device, "cpu or cuda; the GPU if there is one")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_option("--dtype", options.filter.dtypes, "Only these: fp32, bf16, fp16")
      ->delimiter(',')
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_option("--n", options.filter.lengths, "Only these numbers of queries")
      ->delimiter(',');
  command->add_option("--head-dim", options.filter.head_dims, "Only these")->delimiter(',');
  command->add_option("--pass", arguments->passes, "Only these: forward, backward, both")
      ->delimiter(',')
      ->check(CLI::IsMember({"forward", "backward", "both"}));
  command->add_option("--contestants", options.contestants, "Only these, ours and peers by name")
      ->delimiter(',');
  command->add_option("--pairs", arguments->pairs,
                      "Of sweep: queries:keys, such as 128:64 256:128");
  command->add_option("--warmup", options.warmup, "Of sweep: calls that are not timed")
      ->check(CLI::Range(0, 100'000))
      ->capture_default_str();
  command->add_option("--iterations", options.iterations, "Of sweep: calls that are timed")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  command->add_option("--passes", options.passes, "Of grid: forward passes a cell, and backward")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  command->add_flag("--quick", options.quick, "One short turn a cell: only to see that all runs");
  command->add_option("--python", arguments->python, "Python that has torch 2.11")
      ->capture_default_str();
  command->add_option("--peer-script", arguments->script, "The compiled peer; empty: none")
      ->capture_default_str();
  command->add_option(
      "--out", arguments->directory,
      "Also write PRESET.txt, .md, .csv, .json and the pictures into this directory");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
