// Presets of what is measured of one model on one device.
#include <algorithm>

#include "flashstep/report/document/presets.h"

namespace flashstep::report {
namespace {

using measure::Machine;

// Small enough for two cores: 2 and 7 M parameters.
constexpr const char* kQuickSizes = "64/256/2/4,128/512/4/4";
constexpr const char* kQuickSize = "64/256/2/4";
// What the smallest size and its optimizer take at least of a CPU's memory.
constexpr uint64_t kSmallOnCpu = uint64_t{8} << 30;
constexpr const char* kPeers = " --mode forward,step --peers eager,compiled";

std::string sizes_of(const std::string& year) {
  return year == "2026" ? "small,medium,large,xl26,10B" : "small,medium,large,xl,2.7B";
}

// Each handout's rows of a batch; its steps that are timed, after so many that are not; its context
// where it names no other.
std::string batch_flag(const std::string& year) {
  return year == "2024" ? " --batch 16" : " --batch 4";
}
std::string steps_flag(const std::string& year) {
  return year == "2024" ? " --steps 5" : " --steps 10";
}
std::string counts_of(const std::string& year) {
  return (year == "2024" ? " --warmup 1" : " --warmup 5") + steps_flag(year) + batch_flag(year);
}
std::string context_of(const std::string& year) { return year == "2026" ? "512" : "128"; }

// Those of its step times, and those that it profiles.
std::vector<std::string> contexts_of(const std::string& year) {
  if (year == "2025") return {"128", "256", "512", "1024"};
  return {context_of(year)};
}
std::vector<std::string> profiled_contexts(const std::string& year) {
  return year == "2026" ? std::vector<std::string>{"256", "512", "1024"} : contexts_of(year);
}

// "0128": names of results are sorted as text.
std::string padded(const std::string& context) {
  return std::string(4 - std::min<size_t>(4, context.size()), '0') + context;
}

// A machine without GPU measures the smallest size and leaves the others.
void add_on_cpu(const std::string& name, const std::string& line, double seconds,
                const Machine& machine, Plan& plan) {
  add(name, line, seconds, machine, plan, {.memory_bytes = kSmallOnCpu});
  leave_to_gpus(name + ", larger sizes and contexts", machine, plan);
}

}  // namespace

void add_limits(const std::string&, const Machine& machine, Plan& plan) {
  add("limits", "info", 5, machine, plan);
}

void add_step(const std::string& year, const Machine& machine, Plan& plan) {
  if (year == "quick") {
    const std::string cases = " --context 64 --batch 4 --device cpu";
    add("step_quick",
        str("bench step --size ", kQuickSizes, cases,
            " --mode forward,step --precision fp32,bf16 --warmup 2 --steps 5"),
        15, machine, plan);
    add("step_warmup_quick",
        str("bench step --size ", kQuickSize, cases, " --mode step --warmup 0,1,2,5 --steps 5"), 15,
        machine, plan);
    add("step_peers_quick",
        str("bench step --size ", kQuickSize, cases, kPeers,
            " --precision fp32 --warmup 2 --steps 5"),
        45, machine, plan, {.python = true});
    return;
  }
  const std::string counts = counts_of(year);
  if (!has_gpu(machine)) {
    add_on_cpu("step_" + year,
               "bench step --size small --context 128 --mode forward,step --precision fp32,bf16 "
               "--device cpu" +
                   counts,
               300, machine, plan);
    add("step_peers_" + year,
        str("bench step --size small --context 128 --batch 4 --device cpu --precision fp32 "
            "--warmup 1 --steps 3",
            kPeers),
        240, machine, plan, {.memory_bytes = kSmallOnCpu, .python = true});
    return;
  }
  for (const std::string& context : contexts_of(year)) {
    add(str("step_n", padded(context), "_", year),
        str("bench step --size ", sizes_of(year), " --context ", context,
            " --mode forward,step --precision fp32,bf16", counts),
        // An H200's fp32 steps: nearly all of the time, and in proportion to the tokens.
        13 + 0.085 * std::stod(context), machine, plan, {.gpus = 1});
  }
  add("step_warmup_" + year,
      str("bench step --size small,large --context ", context_of(year),
          " --mode step --warmup 0,1,2,5", steps_flag(year), batch_flag(year)),
      20, machine, plan, {.gpus = 1});
  add("step_peers_" + year,
      str("bench step --size small,large --context ", context_of(year), kPeers,
          " --precision fp32,bf16", batch_flag(year)),
      420, machine, plan, {.gpus = 1, .python = true});
}

void add_norm(const std::string& year, const Machine& machine, Plan& plan) {
  if (year != "quick" && year != "2024") return;  // no other handout has norms by themselves
  const std::string python = why_not({.python = true}, machine);
  if (!python.empty()) plan.left_out.push_back({str("norm_", year, ", compiled"), python});
  if (year == "quick") {
    add("norm_quick", "bench norm --preset quick --device cpu", 25, machine, plan);
  } else if (has_gpu(machine)) {
    add("norm_2024", "bench norm --preset 2024 --device cuda", 120, machine, plan, {.gpus = 1});
  } else {
    add("norm_2024", "bench norm --preset cpu --device cpu", 180, machine, plan,
        {.memory_bytes = kSmallOnCpu});
    plan.left_out.push_back({"norm_2024 with 50,000 rows",
                             why_not({.gpus = 1}, machine) + " (10,000 rows stand for them)"});
  }
}

void add_profile(const std::string& year, const Machine& machine, Plan& plan) {
  if (year == "quick") {
    add("profile_quick",
        str("profile --size ", kQuickSize,
            " --context 64 --batch 4 --mode step "
            "--attention naive,auto --device cpu"),
        15, machine, plan);
    return;
  }
  if (!has_gpu(machine)) {
    add_on_cpu("profile_" + year,
               "profile --size small --context 128 --batch 4 --mode step --attention "
               "naive,auto --device cpu",
               90, machine, plan);
    return;
  }
  // Few steps: a GPU repeats them within a percent, and its time is dear. No chrome traces, which
  // would be a gigabyte in all.
  for (const std::string& context : profiled_contexts(year)) {
    add(str("profile_n", padded(context), "_", year),
        str("profile --size ", sizes_of(year), " --context ", context,
            " --mode step --attention naive,auto --warmup 2 --steps 3 --recorded 1 --no-traces",
            batch_flag(year)),
        22 + 0.071 * std::stod(context), machine, plan, {.gpus = 1});
  }
  if (year == "2026")
    plan.left_out.push_back(
        {"profile_2026 at the longest context that fits", "no command searches for it"});
}

void add_memory(const std::string& year, const Machine& machine, Plan& plan) {
  if (year == "quick") {
    add("memory_quick",
        str("memory --size ", kQuickSize,
            " --context 64,128 --batch 4 --mode forward,step "
            "--precision fp32,bf16 --device cpu"),
        20, machine, plan);
    return;
  }
  if (!has_gpu(machine)) {
    add_on_cpu("memory_" + year,
               "memory --size small --context 128 --batch 4 --mode forward,step --precision "
               "fp32,bf16 --device cpu",
               60, machine, plan);
    return;
  }
  // 2024 asks for the peak of each size, the others for one size at several contexts.
  const std::string cases = year == "2024"   ? sizes_of(year) + " --context 128"
                            : year == "2025" ? "2.7B --context 128,256,512"
                                             : "xl26 --context 128,2048";
  add("memory_" + year,
      str("memory --size ", cases, " --mode forward,step --precision fp32,bf16", batch_flag(year)),
      year == "2025" ? 35 : 150, machine, plan, {.gpus = 1});
}

void add_precision(const std::string& year, const Machine& machine, Plan& plan) {
  add("precision", "precision --only accumulation,dtypes,norms", 8, machine, plan);
  if (year == "quick" || !has_gpu(machine)) {
    add("precision_sizes_quick",
        str("precision --only sizes --size ", kQuickSizes, " --context 64 --device cpu"), 15,
        machine, plan);
    return;
  }
  add("precision_sizes_" + year,
      str("precision --only sizes --size ", sizes_of(year), " --context ", context_of(year),
          batch_flag(year)),
      12, machine, plan, {.gpus = 1});
}

void add_account(const std::string&, const Machine& machine, Plan& plan) {
  add("account", "account", 2, machine, plan);
}

void add_tokenizer(const std::string& year, const Machine& machine, Plan& plan) {
  // No peers: what they are compared with would be installed first.
  Measurement measurement{
      .name = "tokenizer_quick",
      .arguments = words_of("bench tokenizer --megabytes 4 --encode-megabytes 2 "
                            "--memory-megabytes 0 --vocab-size 1000 --repeats 3"),
      .seconds = 10,
      .stem_out = true};
  if (year != "quick") {
    measurement.name = "tokenizer";
    measurement.arguments = words_of("bench tokenizer");
    measurement.seconds = 120;
  } else {
    measurement.arguments.insert(measurement.arguments.end(), {"--peers", ""});
  }
  add_if_possible(std::move(measurement), machine, plan);
}

}  // namespace flashstep::report
