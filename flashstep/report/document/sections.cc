// The table of sections, and what a machine can run of them.
#include <filesystem>

#include "flashstep/base/text.h"
#include "flashstep/report/document/command.h"
#include "flashstep/report/document/measurement.h"

namespace flashstep::report {
namespace {

// Why peers in Python cannot run; empty if they can.
std::string python_failure() {
  if (!std::filesystem::exists("scripts/python"))
    return "needs Python's torch, and there is no scripts/python in this directory";
  static const bool has_torch = [] {  // asked once: a report plans many measurements
    CommandOptions find;
    find.command = {
        "scripts/python", "-c",
        "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"};
    return run_command(find).exit_code == 0;
  }();
  return has_torch ? ""
                   : "needs Python's torch, which scripts/python does not find "
                     "(scripts/bootstrap --python installs it)";
}

}  // namespace

const std::vector<Section>& sections() {
  static const std::vector<Section> all = {
      {"limits", "The machine's limits",
       "What the machine does at most, measured: the denominator of every share of the limit."},
      {"step", "Training step",
       "Forward, backward and optimizer of models by size, with the host waiting after each step."},
      {"norm", "Norms by themselves",
       "RMSNorm by a kernel, by its formula and compiled, beside LayerNorm: all that they wait for "
       "is memory."},
      {"profile", "Where the time goes",
       "Kernels and operators by the ranges they run in, their classes, and idle time."},
      {"precision", "Mixed precision",
       "What rounds where: sums in half precision, dtypes under autocast, norms, and each size in "
       "bf16 beside fp32."},
      {"memory", "Where the memory goes",
       "Memory over time by what holds it, its peaks, the largest allocations, and what a block "
       "keeps for backward."},
      {"attention_grid", "Plain attention",
       "Single passes without heads over lengths and head dims, and what does not fit."},
      {"attention", "Attention in tiles",
       "Ours beside the formula and other people's kernels on the same inputs, in turns."},
      {"leaderboard", "Leaderboard", "The case that the course's leaderboard ranked."},
      {"allreduce", "All-reduce", "Sums over ranks by backend, device, size and number of ranks."},
      {"ddp", "Data parallelism",
       "One training step with each way to average gradients, beside ranks that send nothing and "
       "PyTorch's own."},
      {"sharding", "Sharded optimizer",
       "Memory and time of an optimizer whose state is divided between ranks."},
      {"matrix", "Attention x data parallelism",
       "Training with every attention under every wrapper."},
      {"account", "Accounts",
       "Calculated, not measured: parameters, operations, bytes and messages, with their "
       "derivations."},
      {"tokenizer", "Tokenizer", "Training and encoding beside other people's."},
  };
  return all;
}

std::string why_not(const Needs& needs, const measure::Machine& machine) {
  const auto gpus = static_cast<int>(machine.gpus.size());
  if (needs.gpus > gpus) {
    const std::string wanted = needs.gpus == 1 ? "a GPU" : str(needs.gpus, " GPUs");
    const std::string there = gpus == 0 ? "this machine has none" : str("this machine has ", gpus);
    return str("needs ", wanted, ", ",
               machine.unused_gpu ? "and a program built with CUDA (cmake --preset cuda)" : there);
  }
  if (needs.memory_bytes > machine.memory_bytes) {
    return str("needs ", human_bytes(needs.memory_bytes), " of memory, this machine has ",
               human_bytes(machine.memory_bytes));
  }
  if (gpus > 0 && needs.gpu_memory_bytes > machine.gpus[0].memory_bytes) {
    return str("needs ", human_bytes(needs.gpu_memory_bytes), " of GPU memory, this GPU has ",
               human_bytes(machine.gpus[0].memory_bytes));
  }
  return needs.python ? python_failure() : "";
}

}  // namespace flashstep::report
