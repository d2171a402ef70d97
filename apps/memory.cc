// flashstep memory: where the memory of a model goes, or what a memory snapshot holds.
#include "flashstep/profile/memory.h"

#include <memory>
#include <string>

#include "apps/bench.h"
#include "apps/commands.h"
#include "apps/workload_flags.h"
#include "flashstep/base/signals.h"
#include "flashstep/bench/ranks.h"

namespace flashstep::apps {
namespace {

struct MemoryArguments {
  WorkloadFlags workload;
  std::string preset, snapshot;
  tools::MemoryOptions given;
  bool no_reduced = false;
};

void run(const MemoryArguments& arguments) {
  if (const auto task = tools::rank_task()) return tools::memory_process(*task);
  tools::MemoryOptions options = arguments.given;
  const std::string& directory = options.directory;
  make_output_directory(directory, {"memory"});
  if (!arguments.snapshot.empty()) {
    return show(tools::snapshot_report(arguments.snapshot, options.largest, directory), directory,
                "memory");
  }
  arguments.workload.apply(options.axes);
  options.reduce = !arguments.no_reduced;
  options.progress = print_progress;
  const SignalGuard signals;
  show(tools::memory_report(options), directory, "memory");
}

}  // namespace

void add_memory(CLI::App& app) {
  auto* command =
      app.add_subcommand("memory", "Where the memory of a model goes, allocation by allocation");
  auto arguments = std::make_shared<MemoryArguments>();
  add_choice(*command, "--preset", arguments->preset, {"2024", "2025", "2026"},
             "Size, contexts, modes and precisions of a year's handout (2024, 2025, 2026). "
             "Flags replace them");
  arguments->workload.add_options(*command);
  add_shown_number(*command, "--warmup", arguments->given.warmup, {0, 100'000},
                   "Passes before the recorded one");
  add_shown_number(*command, "--largest", arguments->given.largest, {0, 10'000},
                   "Lines a case among the largest allocations");
  command->add_flag("--no-reduced", arguments->no_reduced,
                    "Nothing in the place of a size that does not fit into memory");
  command->add_option("--snapshot", arguments->snapshot,
                      "Measure nothing: read this memory_snapshot.pickle, PyTorch's or ours");
  command->add_option("--out", arguments->given.directory,
                      "Also write tables, pictures over time (memory_timeline_*.svg) and snapshots "
                      "for pytorch.org/memory_viz (*/memory_snapshot.pickle) into this directory");
  run_with_preset(*command, arguments->preset, [arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
