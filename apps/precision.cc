// flashstep precision: what 16-bit numbers cost.
#include "flashstep/profile/precision.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "apps/commands.h"
#include "flashstep/attention/implementation_names.h"
#include "flashstep/base/heap.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/workload.h"
#include "flashstep/measure/gpu.h"

namespace flashstep::apps {
namespace {

const std::vector<std::string> kParts = {"accumulation", "dtypes", "norms", "sizes"};

struct PrecisionArguments {
  std::vector<std::string> parts = kParts;
  tools::NormOptions norm;
  tools::PrecisionSizesOptions sizes;
  std::string directory;
};

void run(PrecisionArguments arguments) {
  make_output_directory(arguments.directory);
  keep_freed_memory();  // as flashstep train does
  if (arguments.sizes.device.empty())
    arguments.sizes.device = measure::list_gpus().empty() ? "cpu" : "cuda";
  arguments.sizes.sizes = tools::sizes_named(arguments.sizes.sizes);
  arguments.sizes.progress = print_progress;
  const SignalGuard signals;
  for (const std::string& part : kParts) {
    const auto& wanted = arguments.parts;
    if (std::find(wanted.begin(), wanted.end(), part) == wanted.end()) continue;
    check_interrupted("interrupted; what was measured is shown");
    const auto result = [&] {
      if (part == "accumulation") return account_report(tools::precision_accumulation());
      if (part == "dtypes") return account_report(tools::precision_dtypes());
      if (part == "norms") return account_report(tools::precision_norms(arguments.norm));
      return tools::precision_sizes(arguments.sizes);
    }();
    show(result, arguments.directory, "precision_" + part);
    std::cout << "\n" << std::flush;
  }
}

}  // namespace

void add_precision(CLI::App& app) {
  auto* command = app.add_subcommand(
      "precision", "What 16-bit numbers cost: sums, autocast's dtypes, norms, models in bf16");
  auto arguments = std::make_shared<PrecisionArguments>();
  auto& sizes = arguments->sizes;
  command->add_option("--only", arguments->parts, "Parts: " + join(kParts))
      ->delimiter(',')
      ->check(CLI::IsMember(kParts));
  command
      ->add_option("--size", sizes.sizes,
                   join(tools::workload_size_names()) +
                       "; all: those of 2025's handout; or d_model/d_ff/layers/heads")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--context", sizes.context_length, "Tokens of a row")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_option("--batch", sizes.batch_size, "Rows")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--attention", sizes.attention, join(attention_implementations()))
      ->capture_default_str();
  sizes.device.clear();
  command->add_option("--device", sizes.device, "cpu or cuda; the GPU if there is one")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_option("--warmup", sizes.warmup, "Passes that are not timed")
      ->check(CLI::Range(0, 100'000))
      ->capture_default_str();
  command->add_option("--steps", sizes.steps, "Timed passes")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  command->add_option("--norm-rows", arguments->norm.rows, "Rows of the norms")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--norm-width", arguments->norm.width, "Elements of a row")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--out", arguments->directory,
                      "Also write precision_PART.* into this directory");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
