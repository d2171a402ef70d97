// flashstep bench leaderboard: a training step of a model that no single GPU holds.
#include <memory>
#include <string>

#include "apps/bench.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/leaderboard.h"
#include "flashstep/bench/ranks.h"

namespace flashstep::apps {
namespace {

struct LeaderboardArguments {
  ParallelFlags flags;
  tools::LeaderboardPlan plan = tools::leaderboard_preset("2026").plan;  // without a case
  PeerFlags peer;
};

void run(const LeaderboardArguments& arguments) {
  if (const auto task = tools::rank_task()) return tools::bench_leaderboard_rank(*task);
  tools::BenchLeaderboardOptions options = tools::leaderboard_preset(arguments.flags.preset);
  arguments.flags.apply(options.axes);
  options.plan = arguments.plan;
  if (!arguments.peer.script.empty()) {
    require(options.axes.ranks.size() == 1,
            "[bench leaderboard] expected one number of ranks beside a baseline, got ",
            options.axes.ranks.size());
    options.baseline = {arguments.peer.python,
                        "-m",
                        "torch.distributed.run",
                        "--standalone",
                        str("--nproc-per-node=", options.axes.ranks.front()),
                        arguments.peer.script};
  }
  options.progress = print_progress;
  const SignalGuard signals;
  show(tools::bench_leaderboard(options), arguments.flags.directory, "leaderboard");
}

}  // namespace

void add_bench_leaderboard(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "leaderboard", "A training step of 8 billion parameters, fully sharded, within a memory");
  auto arguments = std::make_shared<LeaderboardArguments>();
  arguments->flags.preset = "2026";
  arguments->flags.add_options(*command);
  auto& plan = arguments->plan;
  add_implementations(*command, plan.implementations, tools::leaderboard_names());
  command->add_option("--memory", plan.memory_gigabytes, "Of a GPU, 10^9 bytes, that a job may use")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  command->add_option("--warmup", plan.warmup, "Steps that are not timed")
      ->check(CLI::Range(1, 1'000))
      ->capture_default_str();
  command->add_option("--steps", plan.steps, "Timed steps")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  arguments->peer.add_options(*command, "fsdp_torch.py, the baseline on GPUs; empty: none");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
