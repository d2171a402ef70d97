#include "flashstep/report/bench_leaderboard.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "flashstep/base/subprocess.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/limits.h"
#include "flashstep/model/cost.h"
#include "flashstep/report/parallel_case.h"
#include "flashstep/report/rank_jobs.h"
#include "flashstep/report/units.h"

namespace flashstep::report {
namespace {

// Of what the reference computes otherwise: attention and its gradient by other kernels, a stream
// and gradients in float32. bf16 keeps 8 bits, and moments are rounded by chance.
constexpr double kGradientError = 0.05, kLossError = 0.01;

ModelConfig model_of(const LeaderboardCase& c) {
  ParallelCase parallel;
  parallel.model = c.model;
  parallel.vocab_size = c.vocab_size;
  parallel.context_length = c.context_length;
  return report::model_of(parallel);
}

std::string describe(const LeaderboardCase& c) {
  const ModelConfig model = model_of(c);
  return str(c.model, ", ", c.ranks, " x ", c.batch_size, " x ", with_commas(model.context_length));
}

double tokens_of(const Record& r) {
  return r.number("ranks") * r.number("batch") * r.number("context");
}

std::vector<Record> blanks_of(const LeaderboardPlan& plan) {
  const ModelConfig model = model_of(plan.c);
  std::vector<Record> blanks;
  for (const std::string& contestant : plan.contestants) {
    Record& blank = blanks.emplace_back();
    blank.key = {{"model", plan.c.model},
                 {"ranks", plan.c.ranks},
                 {"batch", plan.c.batch_size},
                 {"context", model.context_length}};
    blank.what = describe(plan.c);
    blank.contestant = contestant;
    blank.facts["flops"] = step_flops(model, plan.c.batch_size, model.context_length);
    blank.facts["limit"] = measure::matmul_limit_flops(plan.c.device, "bf16");
  }
  return blanks;
}

// Only what is beyond any rounding is a fault.
void check(Record& r) {
  const auto is_above = [&](const char* fact, double most) {
    const double value = r.number(fact);
    return r.facts.contains(fact) && !(value <= most);
  };
  if (is_above("gradient error", kGradientError) || is_above("loss error", kLossError) ||
      is_above("weight error", 1)) {
    r.fault = str(
        "expected the reference's step within ", kLossError, " of its loss, ", 100 * kGradientError,
        " % of its gradients and what rounding and one update may make of ", "its weights, got ",
        r.number("loss error"), ", ", 100 * r.number("gradient error"), " % and ",
        r.number("weight error"), " times as much");
  }
}

std::vector<Record> measure(const LeaderboardPlan& plan, const Run& run) {
  RankWork work;
  work.job.ranks = static_cast<int>(plan.c.ranks);
  work.job.arguments = {"bench", "leaderboard"};
  work.job.progress = [&](const std::string& line) { run.tell(describe(plan.c) + ": " + line); };
  work.task_of = [plan](const std::vector<std::string>& contestants) {
    LeaderboardPlan part = plan;
    part.contestants = contestants;
    return write_json(part);
  };
  std::vector<Record> records = measure_on_ranks(work, blanks_of(plan));
  for (Record& record : records) check(record);
  return records;
}

// PyTorch's FSDP2 in processes of its own, which print a line of JSON.
Record measure_baseline(const BenchLeaderboardOptions& options, const LeaderboardPlan& plan,
                        bool compiled) {
  LeaderboardPlan alone = plan;
  alone.contestants = {compiled ? "FSDP2, compiled" : "FSDP2"};
  Record record = blanks_of(alone).front();
  record.ours = false;
  const ModelConfig model = model_of(plan.c);
  std::vector<std::string> command = options.baseline;
  const auto add = [&](const char* flag, int64_t value) {
    command.insert(command.end(), {flag, std::to_string(value)});
  };
  add("--d-model", model.d_model);
  add("--d-ff", model.d_ff);
  add("--layers", model.num_layers);
  add("--heads", model.num_heads);
  add("--vocab", model.vocab_size);
  add("--context", model.context_length);
  add("--batch", plan.c.batch_size);
  add("--steps", plan.steps);
  command.insert(command.end(), {"--weights", "bf16", "--recompute", "--json"});
  if (compiled) command.emplace_back("--compile");
  Subprocess process({.command = command, .errors = Errors::kDropped});
  std::string last;
  while (process.wait(200)) {
  }
  for (const std::string& line : process.take_lines()) {
    if (line.starts_with('{')) last = line;
  }
  const auto answer = nlohmann::json::parse(last, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object() || !answer.contains("seconds")) {
    record.outcome = {Status::kFailed, str(command.front(), " ", describe_end(process.status()))};
    return record;
  }
  record.samples["total"] = answer["seconds"].get<std::vector<double>>();
  record.facts["tensor bytes"] = answer["peak_bytes"].get<double>();
  record.facts["used bytes"] = answer["used_bytes"].get<double>();
  record.facts["recompute"] = std::string("block");
  return record;
}

Schema leaderboard_schema() {
  const auto per_second = [](const Record& r, const Records&) {
    return tokens_of(r) / r.median("total");
  };
  const auto share = [](const Record& r, const Records&) {
    return 100 * r.number("flops") / r.median("total") / r.number("limit");
  };
  const auto words = [](const char* name) {
    return [name](const Record& r, const Records&) {
      return r.text(name).empty() ? measure::Cell() : measure::Cell(r.text(name));
    };
  };
  using measure::number_column;
  return {text_key("model"),
          integer_key("ranks"),
          integer_key("batch"),
          integer_key("context"),
          {measure::text_column("contestant"), contestant()},
          {measure::text_column("recompute"), words("recompute")},
          {measure::text_column("steps"), words("steps")},
          {number_column("step", "ms", 1), or_word(median("total", 1e3))},
          {number_column("p10", "ms", 1), quantile("total", 0.1, 1e3)},
          {number_column("p90", "ms", 1), quantile("total", 0.9, 1e3)},
          {number_column("planned", "ms", 1), fact("planned seconds", 1e3)},
          {number_column("tokens", "1/s", 0), finite(per_second)},
          {number_column("of limit", "%", 1), finite(share)},
          {number_column("tensors", "GiB", 1), fact("tensor bytes", 1 / kGiB)},
          {number_column("used", "GB", 1), fact("used bytes", 1e-9)},
          {number_column("planned", "GB", 1), fact("planned bytes", 1e-9)},
          {number_column("loss", "", 4), fact("loss")},
          {error_column("loss error"), fact("loss error")},
          {error_column("gradient error"), fact("gradient error")},
          {error_column("weight error"), fact("weight error")}};
}

std::vector<std::string> leaderboard_findings(const Records& records) {
  std::vector<std::string> sentences;
  for (const Record& r : records) {
    if (!r.ours || !r.has("total")) continue;
    for (const char* baseline : {"FSDP2", "FSDP2, compiled"}) {
      const double times = times_as_fast(r, records, baseline, "total");
      if (std::isfinite(times)) {
        sentences.push_back(str(r.what, ", ", r.contestant, ": ", fixed(times, 2), " x as fast as ",
                                baseline, "."));
      }
    }
  }
  return sentences;
}

}  // namespace

std::vector<std::string> leaderboard_names() {
  return {"reference", "bf16 weights", "fp32 weights"};
}

Config leaderboard_config(const LeaderboardCase& c, const std::string& contestant) {
  const std::vector<std::string> names = leaderboard_names();
  require(std::find(names.begin(), names.end(), contestant) != names.end(),
          "[bench leaderboard] expected one of ", join(names), ", got \"", contestant, "\"");
  Config config;
  config.model = model_of(c);
  config.parallel.shard_optimizer = "full";
  config.parallel.world_size = c.ranks;
  config.schedule.learning_rate = 1e-5;
  config.schedule.min_learning_rate = 1e-6;
  TrainConfig& train = config.train;
  train.device = c.device;
  train.batch_size = c.batch_size;
  train.precision = "bf16";
  train.deterministic = false;
  if (contestant == "bf16 weights") {
    train.weights = train.moments = "bf16";
    config.optimizer.clip_norm = 0;
    config.optimizer.in_backward = true;
  } else if (contestant == "reference") {
    train.stream = train.gradients = "fp32";
    train.graph = "off";
    train.recompute = "block";
    config.optimizer.clip_norm = 0;
    config.model.attention = "sdpa";
  }
  return config;
}

BenchLeaderboardOptions leaderboard_preset(const std::string& year) {
  require(year == "2026", "[bench leaderboard] expected preset 2026, got \"", year, "\"");
  BenchLeaderboardOptions options;
  options.cases = {{}, {.model = "10B", .context_length = 512, .batch_size = 4}};
  options.plan.contestants = leaderboard_names();
  return options;
}

BenchReport bench_leaderboard(const BenchLeaderboardOptions& options) {
  Benchmark benchmark;
  benchmark.command = "bench leaderboard";
  benchmark.title = "A training step of a fully sharded model";
  benchmark.device = options.cases.front().device;
  benchmark.schema = [](const Records&) { return leaderboard_schema(); };
  benchmark.how_to_read = {note("leaderboard")};
  benchmark.how = str("Medians of ", options.plan.steps, " steps in a row after ",
                      options.plan.warmup, ", of the slowest rank");
  benchmark.findings = leaderboard_findings;
  return run_benchmark(benchmark, options.progress, [&](Run& run) {
    for (size_t i = 0; i < options.cases.size(); ++i) {
      LeaderboardPlan plan = options.plan;
      plan.c = options.cases[i];
      run.begin(i, options.cases.size(), describe(plan.c));
      run.add(measure(plan, run));
      if (options.baseline.empty()) continue;
      for (const bool compiled : {false, true}) {
        run.tell(str(describe(plan.c), ": FSDP2", compiled ? ", compiled" : ""));
        run.add(measure_baseline(options, plan, compiled));
      }
    }
  });
}

}  // namespace flashstep::report
