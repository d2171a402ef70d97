// flashstep bench ddp, sharding, matrix, leaderboard and allreduce: training steps, and sums, on
// ranks of this machine, which they start themselves.
#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "flashstep/attention/implementation_names.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/allreduce.h"
#include "flashstep/bench/ddp_and_sharding.h"
#include "flashstep/bench/leaderboard.h"
#include "flashstep/bench/matrix.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"

namespace flashstep::apps {
namespace {

// --wrapper and --bucket-mb, lists.
void add_wrappers(CLI::App& command, std::vector<std::string>& wrappers,
                  std::vector<double>& bucket_megabytes) {
  std::vector<std::string> names = strategy_names();
  names.insert(names.begin(), "none");
  names.emplace_back("bucketed nccl");
  add_names(command, "--wrapper", wrappers, names,
            join(names) +
                "; none: every process by itself; bucketed nccl: not by copies from GPU to GPU");
  add_number(command, "--bucket-mb", bucket_megabytes, {0.0, 1e9},
             "Sizes of buckets, 10^6 bytes; 0: chosen as flashstep train does")
      ->delimiter(',');
}

// ---- ddp and sharding

struct ReplicaArguments {
  ParallelFlags flags;
  tools::BenchReplicaOptions options;  // without axes
  bool no_trace = false;
};

void run_replica(const ReplicaArguments& arguments) {
  if (const auto task = tools::rank_task()) return tools::bench_replica_rank(*task);
  tools::BenchReplicaOptions options = arguments.options;
  options.plan.traced = !arguments.no_trace;
  arguments.flags.apply(options.axes);
  run_and_show(tools::bench_replica, options, arguments.flags.directory, options.plan.command);
}

std::shared_ptr<ReplicaArguments> add_replica(CLI::App& command) {
  auto arguments = std::make_shared<ReplicaArguments>();
  arguments->options.plan.command = command.get_name();
  arguments->flags.add_options(command);
  command.add_option("--attention", arguments->flags.attention, "Implementation of attention")
      ->capture_default_str();
  run_with_preset(command, arguments->flags.preset, [arguments] { run_replica(*arguments); });
  return arguments;
}

void add_turns(CLI::App& command, tools::ReplicaPlan& plan) {
  add_shown_number(command, "--turns", plan.turns, {1, 100'000},
                   "Of every implementation, one after the other");
  add_shown_number(command, "--warmup", plan.warmup, {1, 100'000},
                   "Steps a turn that are not timed");
  add_shown_number(command, "--steps", plan.steps, {1, 100'000}, "Timed steps a turn");
}

// ---- matrix

struct MatrixArguments {
  ParallelFlags flags;
  tools::BenchMatrixOptions options;  // without axes
};

void run_matrix(const MatrixArguments& arguments) {
  if (const auto task = tools::rank_task()) return tools::bench_matrix_rank(*task);
  tools::BenchMatrixOptions options = arguments.options;
  require(!options.plan.train.empty() && !options.plan.validation.empty(),
          "[bench matrix] expected token files: --train T.npy --val V.npy");
  ParallelFlags flags = arguments.flags;
  flags.attention = options.attention.front();
  flags.apply(options.axes);
  run_and_show(tools::bench_matrix, options, flags.directory, "matrix");
}

// ---- leaderboard

struct LeaderboardArguments {
  ParallelFlags flags;
  tools::LeaderboardPlan plan;  // without a case
  PeerFlags peer;
};

void run_leaderboard(const LeaderboardArguments& arguments) {
  if (const auto task = tools::rank_task()) return tools::bench_leaderboard_rank(*task);
  tools::BenchLeaderboardOptions options;
  options.plan = arguments.plan;
  if (!arguments.peer.script.empty()) {
    const std::vector<int64_t>& ranks =
        arguments.flags.ranks.empty() ? options.axes.ranks : arguments.flags.ranks;
    require(ranks.size() == 1,
            "[bench leaderboard] expected one number of ranks beside a baseline, got ",
            ranks.size());
    options.baseline = {arguments.peer.python,
                        "-m",
                        "torch.distributed.run",
                        "--standalone",
                        str("--nproc-per-node=", ranks.front()),
                        arguments.peer.script};
  }
  arguments.flags.apply(options.axes);
  run_and_show(tools::bench_leaderboard, options, arguments.flags.directory, "leaderboard");
}

// ---- allreduce

struct AllreduceArguments {
  tools::BenchAllreduceOptions options;  // empty lists of its plan: the preset's
  std::string preset = "2026", directory;
  std::vector<std::string> backends, devices;
};

// The preset with what was given in place of its lists.
tools::AllreducePlan allreduce_plan(const AllreduceArguments& arguments) {
  const tools::AllreducePlan& given = arguments.options.plan;
  tools::AllreducePlan plan = tools::allreduce_preset(arguments.preset);
  if (!arguments.backends.empty() || !arguments.devices.empty()) {
    plan.transports = tools::transports_of(arguments.backends, arguments.devices);
  } else if (measure::list_gpus().empty()) {
    plan.transports = tools::transports_of({"gloo"}, {"cpu"});
  }
  take_if_given(given.megabytes, plan.megabytes);
  take_if_given(given.ranks, plan.ranks);
  plan.dtype = given.dtype;
  return plan;
}

void run_allreduce(AllreduceArguments& arguments) {
  if (const auto task = tools::rank_task())
    return tools::measure_allreduce(tools::read_task<tools::AllreduceTask>(*task),
                                    tools::hand_over_record);
  arguments.options.plan = allreduce_plan(arguments);
  run_and_show(tools::bench_allreduce, arguments.options, arguments.directory, "allreduce");
}

}  // namespace

void add_bench_ddp(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "ddp", "Strategies of data parallelism beside each other and c10d's Reducer");
  const auto arguments = add_replica(*command);
  tools::ReplicaPlan& plan = arguments->options.plan;
  add_wrappers(*command, arguments->options.wrappers, arguments->options.bucket_megabytes);
  add_turns(*command, plan);
  add_shown_number(*command, "--check-steps", plan.checked_steps, {0, 100'000},
                   "Steps after which weights are compared with a single process's; 0: not at all");
  command->add_flag("--no-trace", arguments->no_trace, "No step under the profiler");
  command->add_flag("--graph", plan.recorded,
                    "Record a step in CUDA graphs and time their replays, which no host holds up");
}

void add_bench_sharding(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "sharding", "Memory and time of an optimizer whose state is divided between ranks");
  const auto arguments = add_replica(*command);
  tools::ReplicaPlan& plan = arguments->options.plan;
  add_names(*command, "--shard", plan.implementations, tools::sharding_names(),
            "Ways to divide it, as parallel.shard_optimizer names them. Between GPUs of one "
            "machine copy engines carry gradients and what was updated; nccl: NCCL does; "
            "scattered: gradients are reduce-scattered; else all-reduced, and each rank "
            "keeps its part")
      ->capture_default_str();
  add_choice(*command, "--wrapper", plan.wrapper, strategy_names(), "How gradients are averaged");
  add_shown_number(*command, "--bucket-mb", plan.bucket_megabytes, {0.0, 1e9},
                   "Size of buckets, 10^6 bytes; 0: chosen as flashstep train does");
  add_turns(*command, plan);
  command->add_flag("--no-trace", arguments->no_trace, "No step under the profiler");
}

void add_bench_matrix(CLI::App& bench) {
  auto* command =
      bench.add_subcommand("matrix", "Training with every attention under every wrapper");
  auto arguments = std::make_shared<MatrixArguments>();
  tools::BenchMatrixOptions& options = arguments->options;
  tools::MatrixPlan& plan = options.plan;
  arguments->flags.add_options(*command);
  options.attention = {"auto", "naive"};
  add_names(*command, "--attention", options.attention, attention_implementations(),
            "Implementations: " + join(attention_implementations()))
      ->capture_default_str();
  command->add_option("--train", plan.train, "Token file (.npy)");
  command->add_option("--val", plan.validation, "Token file (.npy)");
  add_shown_number(*command, "--epochs", plan.epochs, {1, 1'000'000}, "Over the token file");
  add_shown_number(*command, "--max-steps", plan.most_steps, {0, 1'000'000'000},
                   "At most so many an epoch; 0: all");
  add_shown_number(*command, "--val-tokens", plan.validation_tokens, {0, 1'000'000'000},
                   "Only the first so many; 0: all");
  command->add_option("--lr", plan.learning_rate, "Of AdamW, constant")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_wrappers(*command, options.wrappers, options.bucket_megabytes);
  run_with_preset(*command, arguments->flags.preset, [arguments] { run_matrix(*arguments); });
}

void add_bench_leaderboard(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "leaderboard", "A training step of 8 billion parameters, fully sharded, within a memory");
  auto arguments = std::make_shared<LeaderboardArguments>();
  arguments->flags.preset = "2026";
  arguments->flags.add_options(*command);
  auto& plan = arguments->plan;
  add_implementations(*command, plan.implementations, tools::leaderboard_names());
  add_shown_number(*command, "--memory", plan.memory_gigabytes, {0.001, 1e6},
                   "Of a GPU, 10^9 bytes, that a job may use");
  add_shown_number(*command, "--warmup", plan.warmup, {1, 1'000}, "Steps that are not timed");
  add_shown_number(*command, "--steps", plan.steps, {1, 100'000}, "Timed steps");
  arguments->peer.add_options(*command, "fsdp_torch.py, the baseline on GPUs; empty: none");
  run_with_preset(*command, arguments->flags.preset, [arguments] { run_leaderboard(*arguments); });
}

void add_bench_allreduce(CLI::App& bench) {
  auto* command = bench.add_subcommand("allreduce", "Sums over ranks, which it starts: NCCL, Gloo");
  auto arguments = std::make_shared<AllreduceArguments>();
  add_choice(*command, "--preset", arguments->preset, tools::allreduce_presets(),
             "The course's year: 2024, 2025, 2026");
  command
      ->add_option("--megabytes", arguments->options.plan.megabytes,
                   "Sizes in 10^6 bytes, such as 1,10,100,1000; the preset's")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  add_number(*command, "--ranks", arguments->options.plan.ranks, {2, 1024},
             "Numbers of ranks, such as 2,4,6; the preset's")
      ->delimiter(',');
  add_names(*command, "--backend", arguments->backends, {"nccl", "gloo"},
            "nccl, gloo; the preset's");
  add_names(*command, "--device", arguments->devices, {"cuda", "cpu"},
            "cuda, cpu; the preset's, or cpu where there is no GPU");
  add_choice(*command, "--dtype", arguments->options.plan.dtype, {"fp32", "bf16", "fp16"},
             "fp32, bf16, fp16");
  command
      ->add_option("--seconds", arguments->options.task.cell_seconds,
                   "For the timed calls of one implementation and case")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--quick", arguments->options.task.quick,
                    "One short turn a cell: only to see that all runs");
  add_directory(*command, arguments->directory);
  command->callback([arguments] { run_allreduce(*arguments); });
}

}  // namespace flashstep::apps
