// flashstep bench step: forward, backward and the whole step of models on one device, beside
// PyTorch's where that is wanted.
#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "apps/workload_flags.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/step.h"

namespace flashstep::apps {
namespace {

struct StepArguments {
  WorkloadFlags workload;
  std::string preset, directory;
  std::vector<int64_t> warmups;
  int64_t steps = 0, turns = 0;  // 0: the default
  std::vector<std::string> peers, deterministic;
  PeerFlags peer = {.script = "scripts/peers/step_torch.py"};
  bool graph = false, no_reduced = false;
};

void run(const StepArguments& arguments) {
  if (const auto task = tools::rank_task()) return tools::bench_step_process(*task);
  tools::BenchStepOptions options;
  arguments.workload.apply(options.axes);
  take_if_given(arguments.warmups, options.warmups);
  take_if_given(arguments.steps, options.task.steps);
  take_if_given(arguments.turns, options.task.turns);
  take_if_given(arguments.peers, options.task.peers);
  std::erase(options.task.peers, "none");
  options.task.graph = arguments.graph;
  options.task.peer_command = arguments.peer.command();
  if (!arguments.deterministic.empty()) options.deterministic.clear();
  for (const std::string& text : arguments.deterministic)
    options.deterministic.push_back(text == "true");
  options.reduce = !arguments.no_reduced;
  run_and_show(tools::bench_step, options, arguments.directory, "step");
}

void add_counts(CLI::App& command, StepArguments& arguments) {
  add_number(command, "--warmup", arguments.warmups, {0, 100'000},
             "Steps before the timed ones (5); several: each in a process that begins cold")
      ->delimiter(',');
  add_number(command, "--steps", arguments.steps, {1, 100'000}, "Timed steps in a turn (10)");
  add_number(command, "--turns", arguments.turns, {1, 100'000}, "Of ours and of each peer (1)");
}

}  // namespace

void add_bench_step(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "step", "Forward, backward and whole steps of models on one device, beside PyTorch's");
  auto arguments = std::make_shared<StepArguments>();
  add_choice(*command, "--preset", arguments->preset, {"2024", "2025", "2026", "peers"},
             "The lists of a year's handout (2024, 2025, 2026); peers: tiny, mini and base beside "
             "PyTorch. Flags replace them");
  arguments->workload.add_options(*command);
  add_counts(*command, *arguments);
  add_names(*command, "--peers", arguments->peers,
            {"eager", "compiled", "reduce-overhead", "max-autotune", "none"},
            "PyTorch beside ours: eager, torch.compile in its default mode (compiled), "
            "reduce-overhead or max-autotune; none");
  arguments->peer.add_options(*command, "The peer's program");
  command->add_flag("--graph", arguments->graph,
                    "Whole steps on a GPU replayed from a CUDA graph, too (train.graph)");
  add_names(*command, "--deterministic", arguments->deterministic, {"true", "false"},
            "train.deterministic (false): true, false, or both, each as a case");
  command->add_flag("--no-reduced", arguments->no_reduced,
                    "Nothing in the place of a size that does not fit into memory");
  add_directory(*command, arguments->directory);
  run_with_preset(*command, arguments->preset, [arguments] { run(*arguments); });
}

}  // namespace flashstep::apps
