#include "flashstep/report/bench_attention.h"

#include <algorithm>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu_state.h"
#include "flashstep/measure/machine.h"
#include "flashstep/report/bench_attention_choice.h"
#include "flashstep/report/bench_attention_grid.h"
#include "flashstep/report/bench_attention_race.h"
#include "flashstep/report/bench_attention_table.h"
#include "flashstep/report/gpu_timing.h"

namespace flashstep::report {
namespace {

RaceOptions race_options(const BenchAttentionOptions& options) {
  RaceOptions race;
  if (options.device == "cpu") {
    race.cell_seconds = 0.5;
    race.warmup_seconds = 0.05;
    race.least_samples = 5;
    race.sample_seconds = 1e-3;
  }
  if (options.preset == "leaderboard") {
    race.cell_seconds = 10;
    race.warmup_seconds = 1;
    race.turns = 10;
    race.most_samples = 100'000;
  }
  if (options.preset == "sweep") {
    race.warmup_calls = options.warmup;
    race.calls = options.iterations;
  }
  if (options.quick) {
    race = RaceOptions();
    race.cell_seconds = race.warmup_seconds = 1e-4;
    race.turns = race.least_samples = 1;
    race.most_samples = 3;
  }
  return race;
}

const char* kHowToReadAttention =
    "Time: median of a call of ours, launches included; rate: 4 B H D FLOPs for each visible pair "
    "forward, "
    "2.5 times that backward; limit: these FLOPs at the measured matmul rate of the dtype, or the "
    "least bytes at the memory rate. Wrong: elements of the output and the gradients further from "
    "the float64 formula than twice the formula's own error in the dtype.";

const char* kHowToReadAttentionOnGpu =
    " In a graph: the kernels of a call, replayed. sdpa: scaled_dot_product_attention as PyTorch "
    "chooses; math, flash, efficient, cudnn: with that backend alone; compiled: the formula by "
    "torch.compile.";

}  // namespace

AttentionReport bench_attention(const BenchAttentionOptions& options) {
  if (options.preset == "grid") return bench_attention_grid(options);
  const at::Device device = attention_device(options.device);
  const AttentionPreset preset =
      filtered(attention_preset(options.preset, options.pairs), options.filter);
  require(!preset.cases.empty() && !preset.passes.empty(), "[bench attention] expected cases of ",
          options.preset, ", the filter leaves none");
  const auto contestants = chosen_contestants(options, device);
  const RaceOptions race_settings = race_options(options);
  const SdpaSettings settings;
  std::unique_ptr<GpuStream> stream;
  if (device.is_cuda()) stream = std::make_unique<GpuStream>();

  limit_seconds(preset.cases[0], preset.passes[0],
                options.device);  // measured now, on a quiet machine
  const double begin = measure::steady_seconds();
  AttentionReport report;
  std::vector<AttentionResult> results;
  std::string state;
  measure_until_failure(report, [&] {
    for (size_t i = 0; i < preset.cases.size(); ++i) {
      if (options.progress) options.progress(i, preset.cases.size(), describe(preset.cases[i]));
      for (auto& result : race(preset.cases[i], preset.passes, contestants, device, race_settings))
        results.push_back(std::move(result));
      // As it is while the GPU works, not after minutes of waiting.
      if (device.is_cuda() && i == preset.cases.size() / 2) {
        if (const auto now = measure::gpu_state()) state = measure::describe(*now);
      }
    }
    if (options.progress) options.progress(preset.cases.size(), preset.cases.size(), "");
  });
  if (report.failure.empty()) report.failure = failure_of_ours(results);

  report.table = attention_table(results);
  report.table.title = str("Attention: ", options.preset, " on ", options.device);
  report.runs = attention_runs_table(results);
  auto& notes = report.table.notes;
  notes = attention_troubles(results);
  notes.push_back(str(kHowToReadAttention, device.is_cuda() ? kHowToReadAttentionOnGpu : ""));
  const std::string machine = measure::one_line(measure::describe_machine());
  notes.push_back(str(machine, state.empty() ? "" : "; in the middle of the run " + state, "; ",
                      human_seconds(measure::steady_seconds() - begin), "."));
  if (!report.failure.empty()) notes.push_back("Failed: " + report.failure + ".");
  for (auto& sentence : attention_verdict(options.preset, results))
    notes.push_back(std::move(sentence));
  if (report.signal != 0) {
    notes.push_back(str("Interrupted: ", results.size() / preset.passes.size(), " of ",
                        preset.cases.size(), " cases were measured."));
  }
  if (!options.quick) {
    report.pictures = attention_pictures(
        options.preset, results,
        str("flashstep bench attention --preset ", options.preset, "; ", machine));
  }
  return report;
}

}  // namespace flashstep::report
