// flashstep bench ddp: the strategies of data parallelism beside each other and c10d's Reducer.
#include "flashstep/report/bench_ddp.h"

#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "flashstep/base/signals.h"
#include "flashstep/report/bench_ranks.h"

namespace flashstep::apps {
namespace {

struct DdpArguments {
  ParallelFlags flags;
  std::vector<std::string> wrappers;
  std::vector<double> bucket_megabytes;
  report::BenchDdpOptions plan;  // turns, warmup, steps, checked_steps; lists are the preset's
  bool no_trace = false, graph = false;
};

void run(const DdpArguments& arguments) {
  if (const auto task = report::rank_task()) return report::bench_ddp_rank(*task);
  report::BenchDdpOptions options = report::ddp_preset(arguments.flags.preset);
  arguments.flags.apply(options.axes);
  if (!arguments.wrappers.empty()) options.wrappers = arguments.wrappers;
  if (!arguments.bucket_megabytes.empty()) options.bucket_megabytes = arguments.bucket_megabytes;
  options.turns = arguments.plan.turns;
  options.warmup = arguments.plan.warmup;
  options.steps = arguments.plan.steps;
  options.checked_steps = arguments.plan.checked_steps;
  options.traced = !arguments.no_trace;
  options.recorded = arguments.graph;
  options.progress = print_progress;
  const SignalGuard signals;
  show(report::bench_ddp(options), arguments.flags.directory, "ddp");
}

}  // namespace

void add_bench_ddp(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "ddp", "Strategies of data parallelism beside each other and c10d's Reducer");
  auto arguments = std::make_shared<DdpArguments>();
  arguments->flags.add_options(*command);
  command
      ->add_option("--attention", arguments->flags.given.attention, "Implementation of attention")
      ->capture_default_str();
  add_wrappers(*command, arguments->wrappers, arguments->bucket_megabytes);
  auto& plan = arguments->plan;
  add_turns(*command, plan.turns, plan.warmup, plan.steps);
  command
      ->add_option("--check-steps", plan.checked_steps,
                   "Steps after which weights are compared with a single process's; 0: not at all")
      ->check(CLI::Range(0, 100'000))
      ->capture_default_str();
  command->add_flag("--no-trace", arguments->no_trace, "No step under the profiler");
  command->add_flag("--graph", arguments->graph,
                    "Record a step in CUDA graphs and time their replays, which no host holds up");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
