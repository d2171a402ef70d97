// flashstep bench attention: attention beside its peers, in presets.
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/attention.h"
#include "flashstep/error.h"

namespace flashstep::apps {
namespace {

struct AttentionArguments {
  tools::BenchAttentionOptions options;
  std::vector<std::string> pairs;
  PeerFlags peer = {.script = "scripts/peers/attention_torch.py"};
  std::string directory;
};

// "128:64": queries and keys.
std::pair<int64_t, int64_t> pair_of(const std::string& text) {
  static const std::regex form("0*([1-9][0-9]{0,8}):0*([1-9][0-9]{0,8})");
  std::smatch numbers;
  require(std::regex_match(text, numbers, form),
          "[bench attention] expected pairs like 128:64, got \"", text, "\"");
  return {std::stoll(numbers[1]), std::stoll(numbers[2])};
}

void run(AttentionArguments& arguments) {
  auto& options = arguments.options;
  options.device = device_or_gpu(options.device);
  for (const auto& pair : arguments.pairs) options.pairs.push_back(pair_of(pair));
  options.peer_command = arguments.peer.command();
  run_and_show(tools::bench_attention, options, arguments.directory, options.preset);
}

}  // namespace

void add_bench_attention(CLI::App& bench) {
  auto* command = bench.add_subcommand("attention", "Attention beside its peers, in presets");
  auto arguments = std::make_shared<AttentionArguments>();
  auto& options = arguments->options;
  options.device.clear();
  const std::vector<std::string> presets = tools::attention_presets();
  add_choice(*command, "--preset", options.preset, presets, join(presets));
  add_device(*command, options.device);
  add_names(*command, "--dtype", options.filter.dtypes, {"fp32", "bf16", "fp16"},
            "Only these: fp32, bf16, fp16");
  command->add_option("--n", options.filter.lengths, "Only these numbers of queries")
      ->delimiter(',');
  command->add_option("--head-dim", options.filter.head_dims, "Only these")->delimiter(',');
  add_names(*command, "--pass", options.filter.passes, tools::kAttentionPasses,
            "Only these: forward, backward, both");
  add_shown_number(*command, "--window", options.filter.window, {0, 1 << 24},
                   "Causal cases alone, in which a query sees so many keys (0: all up to its own)");
  add_shown_number(*command, "--documents", options.filter.documents, {0, 1 << 24},
                   "Causal cases alone, whose rows are packed with documents of this mean length "
                   "(0: one a row)");
  add_implementations(*command, options.implementations, {});
  command->add_option("--pairs", arguments->pairs,
                      "Of sweep: queries:keys, such as 128:64 256:128");
  add_shown_number(*command, "--warmup", options.warmup, {0, 100'000},
                   "Of sweep: calls that are not timed");
  add_shown_number(*command, "--iterations", options.iterations, {1, 100'000},
                   "Of sweep: calls that are timed");
  add_shown_number(*command, "--passes", options.passes, {1, 100'000},
                   "Of grid: forward passes a cell, and backward");
  command->add_flag("--quick", options.quick, "One short turn a cell: only to see that all runs");
  arguments->peer.add_options(*command, "The compiled baseline; empty: none");
  add_directory(*command, arguments->directory);
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
