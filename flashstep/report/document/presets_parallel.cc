// Presets of attention, and of what is measured on several ranks.
#include "flashstep/report/document/presets.h"

namespace flashstep::report {
namespace {

using measure::Machine;

constexpr const char* kQuickModel =
    " --device cpu --model 64/256/2/4 --context 64 --batch 4 --ranks 2 --precision fp32";
constexpr const char* kQuickTurns = " --turns 3 --warmup 2 --steps 4";
// Two replicas of the smallest size and their optimizers fit beside each other.
constexpr uint64_t kTwoSmallReplicas = uint64_t{12} << 30;

// `line` with the year's lists on two GPUs; without GPUs one small model over Gloo.
void add_ranks(const std::string& name, const std::string& bench, const std::string& year,
               const std::string& on_cpu, const Machine& machine, Plan& plan) {
  const std::string full = name + "_" + year;
  if (has_gpu(machine)) {
    add(full, "bench " + bench + " --preset " + year, 500, machine, plan, {.gpus = 2});
  } else {
    plan.left_out.push_back({full + " over NCCL", why_not({.gpus = 2}, machine)});
    add(full, "bench " + bench + " --device cpu --model small --context 128 --batch 1 " + on_cpu,
        300, machine, plan, {.memory_bytes = kTwoSmallReplicas});
  }
  if (year == "2024")
    plan.left_out.push_back(
        {full + " on two machines with a GPU each", "needs a second machine; a report uses one"});
}

}  // namespace

void add_attention(const std::string& year, const Machine& machine, Plan& plan) {
  if (year == "2024") return;  // that year had no kernels of attention
  if (year == "quick") {
    add("attention_quick",
        "bench attention --preset handout --device cpu --n 128,512 --head-dim 64 --contestants "
        "cpu,naive,sdpa",
        30, machine, plan);
  } else if (has_gpu(machine)) {
    add("attention", "bench attention --preset handout", 285, machine, plan);
    add("attention_throughput", "bench attention --preset throughput", 125, machine, plan);
  } else {
    add("attention", "bench attention --preset cpu", 300, machine, plan);
    leave_to_gpus("attention, the handout's 80 cases", machine, plan);
  }
}

void add_attention_grid(const std::string& year, const Machine& machine, Plan& plan) {
  if (year == "2024") return;
  if (year == "quick") {
    add("attention_grid_quick",
        "bench attention --preset grid --device cpu --dtype fp32 --n 256,1024 --head-dim 16,64 "
        "--passes 5",
        15, machine, plan);
  } else {
    add("attention_grid", "bench attention --preset grid", has_gpu(machine) ? 205 : 600, machine,
        plan);
  }
}

void add_leaderboard(const std::string& year, const Machine& machine, Plan& plan) {
  if (year != "2025") return;
  add("leaderboard", "bench attention --preset leaderboard", 150, machine, plan, {.gpus = 1});
}

void add_allreduce(const std::string& year, const Machine& machine, Plan& plan) {
  if (year == "quick") {
    add("allreduce_quick",
        "bench allreduce --backend gloo --device cpu --megabytes 0.01,1,10 --ranks 2,4 --seconds "
        "0.3",
        15, machine, plan);
    return;
  }
  const size_t gpus = machine.gpus.size();
  if (gpus < 2) {
    plan.left_out.push_back({"allreduce_" + year + " over NCCL", why_not({.gpus = 2}, machine)});
    add("allreduce_" + year,
        str("bench allreduce --backend gloo --device cpu --preset ",
            year == "2026" ? "2025" : year),
        240, machine, plan);
    return;
  }
  const std::string ranks = gpus >= 6 ? "2,4,6" : gpus >= 4 ? "2,4" : "2";
  if (gpus < 6)
    plan.left_out.push_back(
        {"allreduce_" + year + " with more ranks", why_not({.gpus = 6}, machine)});
  add("allreduce_" + year, str("bench allreduce --preset ", year, " --ranks ", ranks), 240, machine,
      plan);
}

void add_ddp(const std::string& year, const Machine& machine, Plan& plan) {
  if (year == "quick") {
    add("ddp_quick", str("bench ddp", kQuickModel, kQuickTurns, " --bucket-mb 0.1,1,10"), 25,
        machine, plan);
    return;
  }
  add_ranks("ddp", "ddp", year, "--bucket-mb 25,100 --turns 1 --warmup 1 --steps 3", machine, plan);
  if (year == "2024" && has_gpu(machine))
    plan.left_out.push_back(
        {"ddp_2024 over Gloo beside NCCL", "`bench ddp` has Gloo on CPUs only, NCCL on GPUs"});
}

void add_sharding(const std::string& year, const Machine& machine, Plan& plan) {
  if (year == "quick") {
    add("sharding_quick", str("bench sharding", kQuickModel, kQuickTurns), 10, machine, plan);
    return;
  }
  add_ranks("sharding", "sharding", year, "--turns 1 --warmup 1 --steps 3", machine, plan);
}

void add_matrix(const std::string& year, const Machine& machine, Plan& plan) {
  const bool quick = year == "quick";
  if (!quick && year != "2025") return;  // no handout asks for it: once is enough
  Measurement measurement;
  measurement.name = quick ? "matrix_quick" : "matrix";
  measurement.before = {
      words_of("data stories --megabytes 2 --seed 1 --out @DATA/train.txt"),
      words_of("data stories --megabytes 1 --seed 2 --out @DATA/val.txt"),
      words_of("tokenizer train @DATA/train.txt --vocab-size 1000 --out @DATA/tokenizer"),
      words_of("tokenizer encode @DATA/train.txt --tokenizer @DATA/tokenizer --out "
               "@DATA/train.npy"),
      words_of("tokenizer encode @DATA/val.txt --tokenizer @DATA/tokenizer --out @DATA/val.npy")};
  const std::string model =
      quick ? std::string(kQuickModel) + " --max-steps 20 --wrapper none,naive,bucketed"
      : has_gpu(machine)
          ? std::string(" --model medium --context 512 --batch 4 --max-steps 50")
          : std::string(
                " --device cpu --model 256/1024/4/4 --context 128 --batch 4 --max-steps 20");
  measurement.arguments = words_of(
      "bench matrix --train @DATA/train.npy --val @DATA/val.npy --val-tokens 8192 --vocab "
      "1000 --attention auto,naive" +
      model);
  measurement.seconds = quick ? 20 : 240;
  if (has_gpu(machine) && !quick) measurement.needs.gpus = 2;
  add_if_possible(std::move(measurement), machine, plan);
}

}  // namespace flashstep::report
