// flashstep bench sharding: what dividing the optimizer's state between ranks saves and costs.
#include <memory>
#include <string>

#include "apps/bench.h"
#include "flashstep/base/signals.h"
#include "flashstep/bench/ddp_and_sharding.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/data_parallel.h"

namespace flashstep::apps {
namespace {

struct ShardingArguments {
  ParallelFlags flags;
  tools::ReplicaPlan plan = tools::sharding_preset("2025").plan;  // without a case
  bool no_trace = false;
};

void run(const ShardingArguments& arguments) {
  if (const auto task = tools::rank_task()) return tools::bench_replica_rank(*task);
  tools::BenchReplicaOptions options = tools::sharding_preset(arguments.flags.preset);
  arguments.flags.apply(options.axes);
  options.plan = arguments.plan;
  options.plan.traced = !arguments.no_trace;
  options.progress = print_progress;
  const SignalGuard signals;
  show(tools::bench_replica(options), arguments.flags.directory, "sharding");
}

}  // namespace

void add_bench_sharding(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "sharding", "Memory and time of an optimizer whose state is divided between ranks");
  auto arguments = std::make_shared<ShardingArguments>();
  arguments->flags.add_options(*command);
  auto& plan = arguments->plan;
  add_attention(*command, arguments->flags.given.attention);
  command
      ->add_option("--shard", plan.implementations,
                   "Ways to divide it, as parallel.shard_optimizer names them. Between GPUs of one "
                   "machine copy engines carry gradients and what was updated; nccl: NCCL does; "
                   "scattered: gradients are reduce-scattered; else all-reduced, and each rank "
                   "keeps its part")
      ->delimiter(',')
      ->check(CLI::IsMember(tools::sharding_names()))
      ->capture_default_str();
  command->add_option("--wrapper", plan.wrapper, "How gradients are averaged")
      ->check(CLI::IsMember(strategy_names()))
      ->capture_default_str();
  command
      ->add_option("--bucket-mb", plan.bucket_megabytes,
                   "Size of buckets, 10^6 bytes; 0: chosen as flashstep train does")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  add_turns(*command, plan.turns, plan.warmup, plan.steps);
  command->add_flag("--no-trace", arguments->no_trace, "No step under the profiler");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
