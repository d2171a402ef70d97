// flashstep bench leaderboard: a training step of a model that no single GPU holds.
#include "flashstep/report/bench_leaderboard.h"

#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "flashstep/base/signals.h"
#include "flashstep/report/bench_ranks.h"

namespace flashstep::apps {
namespace {

struct LeaderboardArguments {
  std::string preset = "2026";
  report::LeaderboardCase given = {.model = "", .batch_size = 0};
  report::LeaderboardPlan plan = report::leaderboard_preset("2026").plan;
  PeerFlags peer;
  std::string directory;
};

void run(const LeaderboardArguments& arguments) {
  if (const auto task = report::rank_task()) return report::bench_leaderboard_rank(*task);
  report::BenchLeaderboardOptions options = report::leaderboard_preset(arguments.preset);
  options.plan = arguments.plan;
  const report::LeaderboardCase& given = arguments.given;
  if (!given.model.empty()) {
    options.cases.resize(1);
    options.cases[0] = given;
    if (given.batch_size == 0) options.cases[0].batch_size = 1;
  }
  for (report::LeaderboardCase& c : options.cases) {
    c.device = device_or_gpu(given.device);
    c.ranks = given.ranks;
    if (given.batch_size > 0) c.batch_size = given.batch_size;
    if (given.context_length > 0) c.context_length = given.context_length;
    if (given.vocab_size > 0) c.vocab_size = given.vocab_size;
  }
  if (!arguments.peer.command().empty()) {
    options.baseline = {arguments.peer.python,
                        "-m",
                        "torch.distributed.run",
                        "--standalone",
                        str("--nproc-per-node=", given.ranks),
                        arguments.peer.script};
  }
  make_output_directory(arguments.directory);
  options.progress = print_progress;
  const SignalGuard signals;
  show(report::bench_leaderboard(options), arguments.directory, "leaderboard");
}

}  // namespace

void add_bench_leaderboard(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "leaderboard", "A training step of 8 billion parameters, fully sharded, within a memory");
  auto arguments = std::make_shared<LeaderboardArguments>();
  auto& given = arguments->given;
  given.device.clear();
  command->add_option("--preset", arguments->preset, "The cases of a year's handout: 2026")
      ->check(CLI::IsMember({"2026"}))
      ->capture_default_str();
  command->add_option("--model", given.model,
                      "In place of them: a size by name, or d_model/d_ff/layers/heads");
  command->add_option("--context", given.context_length, "Tokens of a row")
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("--batch", given.batch_size, "Rows of one rank")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--vocab", given.vocab_size, "Tokens in the vocabulary")
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--ranks", given.ranks, "Processes on this machine")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  add_device(*command, given.device);
  command->add_option("--contestants", arguments->plan.contestants, "What is trained")
      ->delimiter(',')
      ->check(CLI::IsMember(report::leaderboard_names()))
      ->capture_default_str();
  command
      ->add_option("--memory", arguments->plan.memory_gigabytes,
                   "Of a GPU, 10^9 bytes, that a job may use")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  command->add_option("--warmup", arguments->plan.warmup, "Steps that are not timed")
      ->check(CLI::Range(1, 1'000))
      ->capture_default_str();
  command->add_option("--steps", arguments->plan.steps, "Timed steps")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  arguments->peer.add_options(*command, "fsdp_torch.py, the baseline; empty: none");
  add_directory(*command, arguments->directory);
  command->callback([arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
