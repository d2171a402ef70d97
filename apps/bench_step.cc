// flashstep bench step: the CPU training step of three models beside PyTorch's.
#include "flashstep/report/bench_step.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "flashstep/base/heap.h"

namespace flashstep::apps {
namespace {

struct Arguments {
  std::vector<std::string> sizes, precisions = {"fp32", "bf16"}, peers = {"eager"};
  std::string python = "scripts/python", script = "scripts/peers/step_torch.py";
  int64_t rounds = 5, steps = 3;
};

std::vector<std::string> size_names() {
  std::vector<std::string> names;
  for (const auto& c : report::peer_step_cases()) names.push_back(c.name);
  return names;
}

report::BenchStepOptions options_of(const Arguments& arguments) {
  report::BenchStepOptions options;
  for (const auto& c : report::peer_step_cases()) {
    const auto& wanted = arguments.sizes;
    if (std::find(wanted.begin(), wanted.end(), c.name) != wanted.end()) options.cases.push_back(c);
  }
  const auto races = [&](const char* peer) {
    return std::find(arguments.peers.begin(), arguments.peers.end(), peer) != arguments.peers.end();
  };
  options.precisions = arguments.precisions;
  options.rounds = arguments.rounds;
  options.steps = arguments.steps;
  options.eager = races("eager");
  options.compiled = races("compiled");
  if (options.eager || options.compiled)
    options.peer_command = {arguments.python, arguments.script};
  options.progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  return options;
}

}  // namespace

void add_bench_step(CLI::App& bench) {
  auto* command = bench.add_subcommand("step", "Training step on the CPU, beside PyTorch's");
  auto arguments = std::make_shared<Arguments>();
  arguments->sizes = size_names();
  auto output = std::make_shared<BenchOutput>();
  command->add_option("--size", arguments->sizes, "Models: tiny, mini, base")
      ->delimiter(',')
      ->check(CLI::IsMember(size_names()))
      ->capture_default_str();
  command->add_option("--precision", arguments->precisions, "fp32, bf16 (autocast)")
      ->delimiter(',')
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_option("--peers", arguments->peers, "eager, compiled (PyTorch), none")
      ->delimiter(',')
      ->check(CLI::IsMember({"eager", "compiled", "none"}))
      ->capture_default_str();
  command->add_option("--rounds", arguments->rounds, "Turns of ours and the peers")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--steps", arguments->steps, "Timed steps in a turn")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--python", arguments->python, "Python that has torch 2.11")
      ->capture_default_str();
  command->add_option("--peer-script", arguments->script, "The peer's program")
      ->capture_default_str();
  output->add_option(*command);
  command->callback([arguments, output] {
    keep_freed_memory();  // as flashstep train does
    output->show(report::bench_step(options_of(*arguments)));
  });
}

}  // namespace flashstep::apps
