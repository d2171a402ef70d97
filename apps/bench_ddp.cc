// flashstep bench ddp: the strategies of data parallelism beside each other and c10d's Reducer.
#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "flashstep/base/signals.h"
#include "flashstep/bench/ddp_and_sharding.h"
#include "flashstep/bench/ranks.h"

namespace flashstep::apps {
namespace {

struct DdpArguments {
  ParallelFlags flags;
  std::vector<std::string> wrappers;
  std::vector<double> bucket_megabytes;
  tools::ReplicaPlan plan;  // without a case and implementations
  bool no_trace = false;
};

void run(const DdpArguments& arguments) {
  if (const auto task = tools::rank_task()) return tools::bench_replica_rank(*task);
  tools::BenchReplicaOptions options = tools::ddp_preset(arguments.flags.preset);
  arguments.flags.apply(options.axes);
  take_if_given(arguments.wrappers, options.wrappers);
  take_if_given(arguments.bucket_megabytes, options.bucket_megabytes);
  options.plan = arguments.plan;
  options.plan.traced = !arguments.no_trace;
  options.progress = print_progress;
  const SignalGuard signals;
  show(tools::bench_replica(options), arguments.flags.directory, "ddp");
}

}  // namespace

void add_bench_ddp(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "ddp", "Strategies of data parallelism beside each other and c10d's Reducer");
  auto arguments = std::make_shared<DdpArguments>();
  arguments->flags.add_options(*command);
  add_attention(*command, arguments->flags.given.attention);
  add_wrappers(*command, arguments->wrappers, arguments->bucket_megabytes);
  auto& plan = arguments->plan;
  add_turns(*command, plan.turns, plan.warmup, plan.steps);
  command
      ->add_option("--check-steps", plan.checked_steps,
                   "Steps after which weights are compared with a single process's; 0: not at all")
      ->check(CLI::Range(0, 100'000))
      ->capture_default_str();
  command->add_flag("--no-trace", arguments->no_trace, "No step under the profiler");
  command->add_flag("--graph", plan.recorded,
                    "Record a step in CUDA graphs and time their replays, which no host holds up");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
