// flashstep profile: where the time of a model's step goes, or of a trace that was recorded.
#include "flashstep/profile/profile.h"

#include <memory>
#include <optional>
#include <string>

#include "apps/bench.h"
#include "apps/commands.h"
#include "apps/workload_flags.h"
#include "flashstep/base/progress.h"

namespace flashstep::apps {
namespace {

struct ProfileArguments {
  WorkloadFlags workload;
  std::string preset, directory, trace;
  std::optional<int64_t> warmup, steps, recorded;
  int64_t top = 10;
  bool no_inference = false, no_record = false, no_traces = false;
};

void read_trace(const ProfileArguments& arguments) {
  make_output_directory(arguments.directory, {"profile"});
  ProgressBar bar("reading " + arguments.trace, ProgressBar::Unit::kBytes);
  const auto report = tools::trace_report(arguments.trace, arguments.top, bar.callback());
  bar.finish();
  show(report, arguments.directory, "profile");
}

void run(const ProfileArguments& arguments) {
  if (!arguments.trace.empty()) return read_trace(arguments);
  tools::ProfileOptions options;
  arguments.workload.apply(options.axes);
  options.warmup = arguments.warmup.value_or(options.warmup);
  options.steps = arguments.steps.value_or(options.steps);
  options.recorded = arguments.recorded.value_or(options.recorded);
  options.top = arguments.top;
  options.inference = !arguments.no_inference;
  options.record = !arguments.no_record;
  if (!arguments.no_traces) options.directory = arguments.directory;
  run_and_show(tools::profile_report, options, arguments.directory, "profile");
}

}  // namespace

void add_profile(CLI::App& app) {
  auto* command = app.add_subcommand(
      "profile", "Where the time of a step goes: kernels, classes of work, ranges; flame graphs");
  auto arguments = std::make_shared<ProfileArguments>();
  command
      ->add_option(
          "--preset", arguments->preset,
          "The lists of a year's handout (2024, 2025, 2026), each case with attention auto "
          "and naive. Flags replace them")
      ->check(CLI::IsMember({"2024", "2025", "2026"}));
  arguments->workload.add_options(*command);
  add_number(*command, "--warmup", arguments->warmup, {0, 100'000},
             "Steps before the timed ones (3)");
  add_number(*command, "--steps", arguments->steps, {1, 100'000}, "Steps by the clock (5)");
  add_number(*command, "--recorded", arguments->recorded, {1, 1000},
             "Steps under the profiler (2)");
  add_shown_number(*command, "--top", arguments->top, {1, 10'000}, "Kernels in a case's table");
  command->add_flag("--no-inference", arguments->no_inference,
                    "No forward pass by itself beside the steps");
  command->add_flag("--no-record", arguments->no_record,
                    "Only ranges, between cudaProfilerStart and Stop: for nsys and ncu");
  command->add_flag("--no-traces", arguments->no_traces,
                    "Write no chrome traces into --out (tens of MB for a large model)");
  command->add_option("--trace", arguments->trace,
                      "Read this chrome trace (flashstep's or PyTorch's) instead of measuring");
  command->add_option("--out", arguments->directory,
                      "Also write tables, pictures and chrome traces into this directory");
  run_with_preset(*command, arguments->preset, [arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
