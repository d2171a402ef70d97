#include "flashstep/bench/leaderboard.h"

#include <cmath>
#include <string>

#include <nlohmann/json.hpp>

#include "flashstep/base/subprocess.h"
#include "flashstep/base/temporary_folder.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/step_work.h"
#include "flashstep/error.h"
#include "flashstep/measure/limits.h"

namespace flashstep::tools {
namespace {

Record leaderboard_blank(const ParallelCase& c, const std::string& implementation) {
  Record blank = blank_of(c, implementation);
  blank.facts["tokens"] = c.ranks * c.batch_size * c.model.context_length;
  blank.facts["limit seconds"] = pass_flops(c) / measure::matmul_limit_flops(c.device, c.precision);
  return blank;
}

// Only what is beyond any rounding is a fault.
std::string fault_of(const Record& r) {
  const auto is_above = [&](const char* fact, double most) {
    return r.facts.contains(fact) && !(r.number(fact) <= most);
  };
  if (!is_above("gradient error", kMostGradientError) && !is_above("loss error", kMostLossError) &&
      !is_above("weight error", kMostWeightError))
    return "";
  return str("expected the reference's step within ", kMostLossError, " of its loss, ",
             100 * kMostGradientError,
             " % of its gradients and what rounding and one update may make ",
             "of its weights, got ", r.number("loss error"), ", ", 100 * r.number("gradient error"),
             " % and ", r.number("weight error"), " times as much");
}

Record measure(LeaderboardPlan plan, const std::string& implementation, const Run& run) {
  plan.implementations = {implementation};
  Record record =
      measure_plan(plan, "leaderboard", {leaderboard_blank(plan.c, implementation)}, run).front();
  record.fault = fault_of(record);
  return record;
}

// PyTorch's FSDP2 in processes of its own, which print a line of JSON.
Record measure_baseline(const BenchLeaderboardOptions& options, const LeaderboardPlan& plan,
                        bool compiled) {
  Record record = leaderboard_blank(plan.c, compiled ? "FSDP2, compiled" : "FSDP2");
  record.ours = false;
  const ModelConfig& model = plan.c.model;
  std::vector<std::string> command = options.baseline;
  for (const auto& [flag, value] :
       {std::pair("--d-model", model.d_model), std::pair("--d-ff", model.d_ff),
        std::pair("--layers", model.num_layers), std::pair("--heads", model.num_heads),
        std::pair("--vocab", model.vocab_size), std::pair("--context", model.context_length),
        std::pair("--batch", plan.c.batch_size), std::pair("--steps", plan.steps)})
    command.insert(command.end(), {flag, std::to_string(value)});
  command.insert(command.end(), {"--weights", "bf16", "--recompute", "--json"});
  if (compiled) command.emplace_back("--compile");
  nlohmann::json answer;
  record.outcome = attempt([&] {
    Subprocess process({.command = command, .errors = Errors::kDropped});
    for (const std::string& line : process.lines_to_end())
      if (line.starts_with('{')) answer = nlohmann::json::parse(line, nullptr, false);
    if (!answer.is_object() || !answer.contains("seconds"))
      throw MachineError(str(options.baseline.back(), " ", describe_end(process.status())));
  });
  if (!record.outcome.measured()) return record;
  record.samples["total"] = answer["seconds"].get<std::vector<double>>();
  record.facts["tensor bytes"] = answer["peak_bytes"].get<double>();
  record.facts["used bytes"] = answer["used_bytes"].get<double>();
  record.facts["recompute"] = "block";
  return record;
}

Schema leaderboard_schema() {
  using measure::number_column, measure::text_column;
  return parallel_schema() +
         Schema{{text_column("implementation"), implementation()},
                {text_column("recompute"), fact("recompute")},
                {text_column("steps"), fact("steps")},
                {number_column("step", "ms", 1), or_word(median("total", 1e3))},
                {number_column("p10", "ms", 1), quantile("total", 0.1, 1e3)},
                {number_column("p90", "ms", 1), quantile("total", 0.9, 1e3)},
                {number_column("planned", "ms", 1), fact("planned seconds", 1e3)},
                {number_column("tokens", "1/s", 0), finite(rate("tokens", "total"))},
                {number_column("of limit", "%", 1), finite(rate("limit seconds", "total", 100))},
                {number_column("tensors", "GiB", 1), fact("tensor bytes", 1 / kGiB)},
                {number_column("used", "GB", 1), fact("used bytes", 1e-9)},
                {number_column("planned", "GB", 1), fact("planned bytes", 1e-9)},
                {number_column("loss", "", 4), fact("loss")},
                {error_column("loss error"), fact("loss error")},
                {error_column("gradient error"), fact("gradient error")},
                {error_column("weight error"), fact("weight error")}};
}

// Where the time of a step goes, and what the GPU drew.
std::vector<NamedTable> leaderboard_work(const Records& records) {
  const Records traced =
      records.where([](const Record& record) { return record.facts.contains("traced"); });
  if (traced.empty()) return {};
  const Schema schema = parallel_schema() +
                        Schema{{measure::text_column("implementation"), implementation()}} +
                        step_work_schema(traced);
  measure::Table table = fill("What a step spends its time on, first rank", schema, traced);
  table.notes = {note("leaderboard work")};
  return {{"work", std::move(table)}};
}

std::vector<std::string> leaderboard_findings(const Records& records) {
  std::vector<std::string> sentences;
  for (const Record& r : records) {
    if (!r.ours || !r.has("total")) continue;
    for (const char* baseline : {"FSDP2", "FSDP2, compiled"}) {
      const double times = times_as_fast(r, records, baseline, "total");
      if (std::isfinite(times)) {
        sentences.push_back(str(r.what, ", ", r.implementation, ": ", fixed(times, 2),
                                " x as fast as ", baseline, "."));
      }
    }
  }
  return sentences;
}

}  // namespace

std::vector<std::string> leaderboard_names() {
  return {"reference", "bf16 weights", "fp32 weights"};
}

Config leaderboard_config(const ParallelCase& c, const std::string& implementation) {
  require(c.ranks >= 2, "[bench leaderboard] expected 2 ranks or more to divide a model, got ",
          c.ranks);
  Config config;
  config.model = c.model;
  config.parallel.shard_optimizer = "full";
  config.parallel.world_size = c.ranks;
  config.schedule.learning_rate = 1e-5;
  config.schedule.min_learning_rate = 1e-6;
  TrainConfig& train = config.train;
  train.device = c.device;
  train.batch_size = c.batch_size;
  train.precision = c.precision;
  train.deterministic = false;
  if (implementation == "bf16 weights") {
    train.weights = train.moments = "bf16";
    config.optimizer.clip_norm = 0;
    config.optimizer.in_backward = true;
  } else if (implementation == "reference") {
    train.stream = train.gradients = "fp32";
    train.graph = "off";
    train.recompute = "block";
    config.optimizer.clip_norm = 0;
    config.model.attention = "sdpa";
  }
  return config;
}

BenchReport bench_leaderboard(const BenchLeaderboardOptions& options) {
  const std::vector<ParallelCase> cases = cases_of(options.axes);
  const TemporaryFolder samples;
  LeaderboardPlan plan = options.plan;
  const Benchmark benchmark = {.command = "bench leaderboard",
                               .title = "A training step of a fully sharded model",
                               .device = options.axes.common.device,
                               .schema = [](const Records&) { return leaderboard_schema(); },
                               .how_to_read = {note("leaderboard")},
                               .how = str("Medians of ", plan.steps, " steps in a row after ",
                                          plan.warmup, ", of the slowest rank"),
                               .findings = leaderboard_findings,
                               .pictures = step_memory_pictures,
                               .tables = leaderboard_work};
  return run_benchmark(benchmark, options.progress, [&](Run& run) {
    for (size_t i = 0; i < cases.size(); ++i) {
      plan.c = cases[i];
      for (const std::string& name : options.plan.implementations) leaderboard_config(plan.c, name);
      plan.samples = samples / std::to_string(i);
      run.begin(i, cases.size(), describe(plan.c));
      for (const std::string& implementation : options.plan.implementations)
        run.add(measure(plan, implementation, run));
      if (options.baseline.empty()) continue;
      for (const bool compiled : {false, true}) {
        run.tell(str(describe(plan.c), ": FSDP2", compiled ? ", compiled" : ""));
        run.add(measure_baseline(options, plan, compiled));
      }
    }
  });
}

}  // namespace flashstep::tools
