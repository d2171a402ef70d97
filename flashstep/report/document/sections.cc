// The table of sections, and what a machine can run of them.
#include <algorithm>
#include <filesystem>
#include <sstream>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/report/document/command.h"
#include "flashstep/report/document/presets.h"

namespace flashstep::report {
namespace {

// Why peers in Python cannot run; empty if they can.
std::string python_trouble() {
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

bool has_measurement(const Plan& plan, const std::string& name) {
  return std::any_of(plan.measurements.begin(), plan.measurements.end(),
                     [&](const Measurement& m) { return m.name == name; });
}

// Moves what is new in `part` into `plan`.
void merge(Plan part, const char* section, Plan& plan) {
  for (Measurement& measurement : part.measurements) {
    measurement.section = section;
    if (!has_measurement(plan, measurement.name))
      plan.measurements.push_back(std::move(measurement));
  }
  for (LeftOut& left_out : part.left_out) {
    left_out.section = section;
    const bool known =
        std::any_of(plan.left_out.begin(), plan.left_out.end(), [&](const LeftOut& other) {
          return other.what == left_out.what && other.section == left_out.section;
        });
    if (!known) plan.left_out.push_back(std::move(left_out));
  }
}

}  // namespace

const std::vector<Section>& sections() {
  static const std::vector<Section> all = {
      {"limits", "The machine's limits",
       "What the machine does at most, measured: the denominator of every share of the limit.",
       add_limits},
      {"step", "Training step",
       "Forward, backward and optimizer of models by size, with the host waiting after each step.",
       add_step},
      {"norm", "Norms by themselves",
       "RMSNorm by a kernel, by its formula and compiled, beside LayerNorm: all that they wait for "
       "is memory.",
       add_norm},
      {"profile", "Where the time goes",
       "Kernels and operators by the ranges they run in, their classes, and idle time.",
       add_profile},
      {"precision", "Mixed precision",
       "What rounds where: sums in half precision, dtypes under autocast, norms, and each size in "
       "bf16 beside fp32.",
       add_precision},
      {"memory", "Where the memory goes",
       "Memory over time by what holds it, its peaks, the largest allocations, and what a block "
       "keeps for backward.",
       add_memory},
      {"attention_grid", "Plain attention",
       "Single passes without heads over lengths and head dims, and what does not fit.",
       add_attention_grid},
      {"attention", "Attention in tiles",
       "Ours beside the formula and other people's kernels on the same inputs, in turns.",
       add_attention},
      {"leaderboard", "Leaderboard", "The case that the course's leaderboard ranked.",
       add_leaderboard},
      {"allreduce", "All-reduce", "Sums over ranks by backend, device, size and number of ranks.",
       add_allreduce},
      {"ddp", "Data parallelism",
       "One training step with each way to average gradients, beside ranks that send nothing and "
       "PyTorch's own.",
       add_ddp},
      {"sharding", "Sharded optimizer",
       "Memory and time of an optimizer whose state is divided between ranks.", add_sharding},
      {"matrix", "Attention x data parallelism",
       "Training with every attention under every wrapper.", add_matrix},
      {"account", "Accounts",
       "Calculated, not measured: parameters, operations, bytes and messages, with their "
       "derivations.",
       add_account},
      {"tokenizer", "Tokenizer", "Training and encoding beside other people's.", add_tokenizer},
  };
  return all;
}

std::vector<std::string> report_presets() { return {"quick", "2024", "2025", "2026", "all"}; }

Plan plan_of(const Section& section, const std::string& preset, const measure::Machine& machine) {
  const auto presets = report_presets();
  require(std::find(presets.begin(), presets.end(), preset) != presets.end(),
          "[report] expected a preset among ", join(presets), ", got \"", preset, "\"");
  const std::vector<std::string> years =
      preset == "all" ? std::vector<std::string>{"2025", "2026", "2024"} : std::vector{preset};
  Plan plan;
  for (const std::string& year : years) {
    Plan part;
    section.add(year, machine, part);
    merge(std::move(part), section.name, plan);
  }
  return plan;
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
  return needs.python ? python_trouble() : "";
}

void add_if_possible(Measurement measurement, const measure::Machine& machine, Plan& plan) {
  const std::string why = why_not(measurement.needs, machine);
  if (why.empty())
    plan.measurements.push_back(std::move(measurement));
  else
    plan.left_out.push_back({measurement.name, why});
}

void add(const std::string& name, const std::string& line, double seconds,
         const measure::Machine& machine, Plan& plan, const Needs& needs) {
  add_if_possible({.name = name, .arguments = words_of(line), .seconds = seconds, .needs = needs},
                  machine, plan);
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

void leave_to_gpus(const std::string& what, const measure::Machine& machine, Plan& plan) {
  if (!has_gpu(machine))
    plan.left_out.push_back({what, "needs a GPU, this machine has none (hours on its CPU)"});
}

}  // namespace flashstep::report
