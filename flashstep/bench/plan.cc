#include "flashstep/bench/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/machine.h"

namespace flashstep::tools {
namespace {

int64_t ranks_of(const PlanInputs& inputs) {
  if (inputs.ranks != 0) return inputs.ranks;
  return std::max<int64_t>(inputs.config.parallel.world_size, 1);
}

constexpr const char* kFits[] = {"no", "launched", "yes"};  // by Fit

std::string label_of(const PlannedLevel& level) {
  return level.blocks == 0 ? level.recompute
                           : str(level.recompute, ", first ", level.blocks, " blocks");
}

measure::Table levels_table(const Plan& plan, const PlanDevice& device) {
  measure::Table table;
  table.columns = {measure::text_column("train.recompute"),
                   measure::number_column("kept for backward", "GiB", 2),
                   measure::number_column("tensors", "GiB", 1),
                   measure::number_column("used", "GiB", 1),
                   measure::text_column("fits"),
                   measure::number_column("step", "ms", 1),
                   measure::number_column("products", "ms", 1),
                   measure::number_column("attention", "ms", 1),
                   measure::number_column("memory", "ms", 1),
                   measure::number_column("launches", "ms", 1),
                   measure::number_column("exposed", "ms", 1),
                   measure::integer_column("tokens", "1/s")};
  for (const PlannedLevel& level : plan.levels) {
    std::vector<measure::Cell> row = {label_of(level), level.kept_bytes / kGiB,
                                      level.tensor_bytes / kGiB, level.used_bytes / kGiB,
                                      kFits[static_cast<size_t>(level.fit)]};
    if (const auto& time = level.time) {
      for (const double s : {time->total_s(), time->products_s, time->attention_s, time->memory_s,
                             time->launches_s, time->communication_s}) {
        row.emplace_back(1e3 * s);
      }
      row.emplace_back(static_cast<int64_t>(plan.tokens / time->total_s()));
    }
    row.resize(table.columns.size());
    table.add_row(std::move(row));
  }
  table.notes.emplace_back(
      device.is_gpu
          ? "tensors: the most at once; used: as nvidia-smi shows it, with what the allocator "
            "holds beside a recorded step. fits: launched = yes, but not as a CUDA graph beside "
            "what the launched steps leave. memory: kernels bound by it, AdamW and what copies "
            "move included; exposed: communication; tokens: of a rank."
          : "tensors: the most at once, of a process; used: resident. All processes share the "
            "machine's memory, of which a twentieth, and at least 0.5 GiB, stays free. A "
            "checkpoint that is written while training goes on takes copies of weights and moments "
            "more, where there is room.");
  return table;
}

measure::Table parts_table(const Plan& plan) {
  measure::Table table;
  table.title = "A rank's memory at its fullest moment, by train.recompute";
  table.columns = {measure::text_column("part")};
  for (const PlannedLevel& level : plan.levels)
    table.columns.push_back(measure::number_column(label_of(level), "GiB", 2));
  std::vector<measure::Cell> sum = {"in all"};
  for (const PlannedLevel& level : plan.levels) sum.emplace_back(level.used_bytes / kGiB);
  const auto& parts = plan.levels.front().parts;  // the same at every level
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<measure::Cell> row = {parts[i].name};
    double most = 0;
    for (const PlannedLevel& level : plan.levels) {
      row.emplace_back(level.parts[i].bytes / kGiB);
      most = std::max(most, level.parts[i].bytes);
    }
    if (most > 0) table.add_row(std::move(row));
  }
  table.add_row(std::move(sum));
  return table;
}

std::string verdict(const Plan& plan, const PlannedLevel& chosen, const PlanDevice& device) {
  const std::string there = fixed(device.memory_bytes / kGiB, 1);
  if (!plan.recommended) {
    return str("Nothing fits in ", there, " GiB: more ranks with parallel.shard_optimizer full, ",
               "train.moments bf16, or fewer rows (train.batch_size) need less.");
  }
  const PlannedLevel& best = plan.levels[*plan.recommended];
  std::string sentence = str("Recommended: train.recompute ", best.recompute);
  if (best.blocks > 0) sentence += str(", train.recompute_blocks ", best.blocks);
  if (best.recompute == chosen.recompute && best.blocks == chosen.blocks)
    return sentence + ", as the config has it.";
  return str(sentence, " (the config has ", label_of(chosen), ", ",
             chosen.fit == Fit::kNo ? "which does not fit" : "which is slower", ").");
}

}  // namespace

double bytes_of(const std::string& text) {
  const std::pair<const char*, double> units[] = {
      {"GiB", kGiB}, {"MiB", kMiB}, {"GB", kGB}, {"MB", kMB}};
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  std::string unit = end;
  unit.erase(0, unit.find_first_not_of(' '));
  for (const auto& [name, bytes] : units) {
    if (unit == name && end != text.c_str() && value > 0 && std::isfinite(value))
      return value * bytes;
  }
  throw UserError(str("[plan] expected a size such as 141GiB or 80GB, got \"", text, "\""));
}

PlanDevice plan_device(const PlanInputs& inputs, std::string& name) {
  const std::string& wanted = inputs.config.train.device;
  require(inputs.card.empty() || wanted != "cpu",
          "[plan] expected no card with train.device cpu, got ", inputs.card);
  const measure::Machine machine = measure::describe_machine();
  PlanDevice device;
  name = inputs.card;
  if (name.empty() && wanted != "cpu" && !machine.gpus.empty()) {
    name = machine.gpus.front().name;
    device.memory_bytes = static_cast<double>(machine.gpus.front().memory_bytes);
  }
  require(!name.empty() || wanted != "cuda",
          "[plan] expected a GPU here, or the name of one (--card H200), for train.device cuda");
  if (name.empty()) {
    name = "the CPU";
    device.is_gpu = false;
    device.memory_bytes = static_cast<double>(machine.memory_bytes);
  } else {
    const auto memory = measure::gpu_memory_bytes(name);
    require(memory || inputs.card.empty(),
            "[plan] expected a GPU with a data sheet, such as H200, ",
            "H100, \"A100-SXM4-80GB\" or B200, got \"", inputs.card, "\"");
    if (device.memory_bytes == 0) device.memory_bytes = *memory;
    device.rates = measure::step_rates(name);
  }
  if (inputs.memory_bytes > 0) device.memory_bytes = inputs.memory_bytes;
  return device;
}

BenchReport plan_report(const PlanInputs& inputs) {
  std::string name;
  const PlanDevice device = plan_device(inputs, name);
  const int64_t ranks = ranks_of(inputs);
  const Plan plan = plan_run(inputs.config, ranks, device);
  const TrainConfig& train = inputs.config.train;
  const PlannedLevel& chosen = plan.levels[plan.chosen];
  BenchReport report;
  report.table = levels_table(plan, device);
  report.table.title =
      str("Plan of a rank: ", with_commas(static_cast<int64_t>(plan.parameters)), " parameters, ",
          train.accumulation_steps > 1 ? str(train.accumulation_steps, " x ") : "",
          train.batch_size, " x ", with_commas(plan.model.context_length), " tokens, ",
          train.precision, train.bf16_products == "fp8" ? " (products fp8), " : ", ", train.moments,
          " moments, ", ranks, ranks == 1 ? " rank" : " ranks",
          ranks == 1 ? "" : ", shard_optimizer " + inputs.config.parallel.shard_optimizer, ", ",
          name, ", ", fixed(device.memory_bytes / kGiB, 1), " GiB");
  if (inputs.config.model.vocab_size == 0) {
    report.table.notes.push_back(str("Vocabulary: the ",
                                     with_commas(inputs.config.tokenizer.vocab_size),
                                     " tokens that the tokenizer is asked for."));
  }
  if (!device.is_gpu && train.device == "auto") {
    report.table.notes.emplace_back(
        "No GPU is here: planned for the CPU. --card H200 plans for a GPU.");
  }
  if (chosen.time) {
    report.table.notes.push_back(
        str("Times: ", device.rates->source, "; ranks are GPUs of one machine."));
  } else {
    report.table.notes.emplace_back(
        "No times: there are rates for bf16 on GPUs with a data sheet, up to 8 "
        "ranks on one machine with parallel.peer_copies all, attention not naive.");
  }
  report.table.notes.push_back(verdict(plan, chosen, device));
  report.tables.push_back({"memory", parts_table(plan)});
  return report;
}

}  // namespace flashstep::tools
