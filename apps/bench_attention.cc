// flashstep bench attention: attention beside its peers, in presets.
#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "flashstep/base/heap.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/attention.h"
#include "flashstep/error.h"

namespace flashstep::apps {
namespace {

struct AttentionArguments {
  tools::BenchAttentionOptions options;
  std::vector<std::string> passes, pairs;
  PeerFlags peer = {.script = "scripts/peers/attention_torch.py"};
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
  options.device = device_or_gpu(options.device);
  make_output_directory(arguments.directory);
  keep_freed_memory();  // as flashstep train does
  for (const auto& pass : arguments.passes)
    options.filter.passes.push_back(tools::pass_by_name(pass));
  for (const auto& pair : arguments.pairs) options.pairs.push_back(pair_of(pair));
  options.peer_command = arguments.peer.command();
  options.progress = print_progress;
  const SignalGuard signals;
  show(tools::bench_attention(options), arguments.directory, options.preset);
}

}  // namespace

void add_bench_attention(CLI::App& bench) {
  auto* command = bench.add_subcommand("attention", "Attention beside its peers, in presets");
  auto arguments = std::make_shared<AttentionArguments>();
  auto& options = arguments->options;
  options.device.clear();
  std::vector<std::string> presets = tools::attention_presets();
  presets.emplace_back("grid");
  command->add_option("--preset", options.preset, join(presets))
      ->check(CLI::IsMember(presets))
      ->capture_default_str();
  add_device(*command, options.device);
  add_names(*command, "--dtype", options.filter.dtypes, {"fp32", "bf16", "fp16"},
            "Only these: fp32, bf16, fp16");
  command->add_option("--n", options.filter.lengths, "Only these numbers of queries")
      ->delimiter(',');
  command->add_option("--head-dim", options.filter.head_dims, "Only these")->delimiter(',');
  add_names(*command, "--pass", arguments->passes, {"forward", "backward", "both"},
            "Only these: forward, backward, both");
  add_implementations(*command, options.implementations, {});
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
  arguments->peer.add_options(*command, "The compiled baseline; empty: none");
  add_directory(*command, arguments->directory);
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
