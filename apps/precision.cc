// flashstep precision: what 16-bit numbers cost.
#include "flashstep/profile/precision.h"

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "apps/commands.h"
#include "apps/workload_flags.h"
#include "flashstep/attention/implementation_names.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/workload.h"
#include "flashstep/profile/account.h"
#include "flashstep/train/tensor_memory.h"

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
  std::vector<std::string> names;
  for (const std::string& part : arguments.parts) names.push_back("precision_" + part);
  make_output_directory(arguments.directory, names);
  keep_memory_of_tensors();  // as flashstep train does
  tools::WorkloadAxes& axes = arguments.sizes.axes;
  axes.common.device = device_or_gpu(axes.common.device);
  axes.sizes = tools::sizes_named(axes.sizes);
  arguments.sizes.progress = print_progress;
  // A wrong size is told before the other parts have taken their time.
  if (tools::contains(arguments.parts, "sizes")) tools::workloads_of(axes);
  const SignalGuard signals;
  for (const std::string& part : kParts) {
    if (!tools::contains(arguments.parts, part)) continue;
    check_interrupted("interrupted; what was measured is shown");
    const auto result = [&] {
      if (part == "accumulation") return tools::account_report(tools::precision_accumulation());
      if (part == "dtypes") return tools::account_report(tools::precision_dtypes());
      if (part == "norms") return tools::account_report(tools::precision_norms(arguments.norm));
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
  auto& axes = sizes.axes;
  add_names(*command, "--only", arguments->parts, kParts, "Parts: " + join(kParts));
  command
      ->add_option("--size", axes.sizes,
                   join(tools::workload_size_names()) +
                       "; all: those of 2025's handout; or d_model/d_ff/layers/heads")
      ->delimiter(',')
      ->capture_default_str();
  add_shown_number(*command, "--context", axes.contexts.front(), {1, 1 << 24}, "Tokens of a row");
  add_shown_number(*command, "--batch", axes.common.batch_size, {1, 1 << 20}, "Rows");
  command->add_option("--attention", axes.attentions.front(), join(attention_implementations()))
      ->capture_default_str();
  axes.common.device.clear();
  add_device(*command, axes.common.device);
  add_shown_number(*command, "--warmup", sizes.warmup, {0, 100'000}, "Passes that are not timed");
  add_shown_number(*command, "--steps", sizes.steps, {1, 100'000}, "Timed passes");
  add_shown_number(*command, "--norm-rows", arguments->norm.rows, {1, 1 << 20},
                   "Rows of the norms");
  add_shown_number(*command, "--norm-width", arguments->norm.width, {2, 1 << 20},
                   "Elements of a row");
  command->add_option("--out", arguments->directory,
                      "Also write precision_PART.* into this directory");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
