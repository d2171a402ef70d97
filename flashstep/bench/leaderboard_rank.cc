// What a rank of `flashstep bench leaderboard` does.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include "flashstep/bench/leaderboard.h"
#include "flashstep/bench/model_run.h"
#include "flashstep/bench/plan.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/step_work.h"
#include "flashstep/bench/timing.h"
#include "flashstep/checkpoint.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu_state.h"
#include "flashstep/measure/memory_observer.h"
#include "flashstep/optim.h"
#include "flashstep/profiling.h"
#include "flashstep/sharded_units.h"
#include "flashstep/trace/trace.h"
#include "flashstep/train/parts.h"
#include "flashstep/train/recorded_step.h"

namespace flashstep::tools {
namespace {

using at::Tensor;

constexpr int64_t kSampled = 512;  // elements of each shard, evenly spread

Tensor sample_of(const Tensor& tensor) {
  const Tensor flat = tensor.detach().reshape({-1});
  const int64_t stride = std::max<int64_t>(1, flat.numel() / kSampled);
  return flat.slice(0, 0, c10::nullopt, stride).to(at::kCPU, at::kDouble);
}

// Of the GPU, whoever uses it: what nvidia-smi shows.
double used_gpu_bytes(at::Device device) {
  const auto [free, total] = at::accelerator::getMemoryInfo(device.index());
  return static_cast<double>(total - free);
}

// Of this rank's shards after the first step: "loss" (), "NAME/weight", and "NAME/gradient", which
// is exp_avg of gradients that were not clipped, or what it would have been: these times 1 - beta1.
using Samples = std::map<std::string, Tensor>;

class Job {
 public:
  Job(const Config& config, Group& group)
      : device_(current_device(config.train.device)),
        parts_(make_parts(config, device_, &group)),
        rows_(random_rows(config.model, config.train.batch_size,
                          static_cast<uint64_t>(config.train.seed + group.rank()), device_)),
        step_(
            parts_.model->parameters(), *parts_.optimizer,
            [this](int64_t, int64_t) { return parts_.model->loss(rows_.inputs, rows_.targets); },
            step_options(config), parts_.parallel, [](int64_t, int64_t) {}),
        max_norm_(config.optimizer.clip_norm),
        recorded_(step_, graph_mode_by_name(config.train.graph),
                  [](const std::string& sentence) { tell_progress(sentence); }) {}

  // The first step.
  Samples begin() {
    const StepResult result = [&] {
      const ScopedRange step("step");
      return recorded_.run(0);
    }();
    const double factor =
        max_norm_ > 0 ? std::min(1.0, max_norm_ / result.grad_norm.item<double>()) : 1;
    return samples(result.loss.item<double>(), factor);
  }
  void launch(int64_t number) { recorded_.run(number); }
  bool is_recorded() const { return recorded_.is_recorded(); }
  at::Device device() const { return device_; }

 private:
  Samples samples(double loss, double clipped) const {
    Samples result{{"loss", at::full({}, loss, at::kDouble)}};
    const auto& state = parts_.optimizer->state();
    for (const Shard& shard : parts_.parallel->units()->shards()) {
      const auto found = state.find(shard.tensor.unsafeGetTensorImpl());
      if (shard.tensor.numel() == 0 || found == state.end()) continue;
      const auto& moments = static_cast<const AdamWState&>(*found->second);
      result[shard.name + "/weight"] = sample_of(shard.tensor);
      result[shard.name + "/gradient"] = sample_of(moments.exp_avg) / clipped;
    }
    return result;
  }

  at::Device device_;
  TrainedParts parts_;
  TokenRows rows_;
  TrainStep step_;
  const double max_norm_;
  RecordedStep recorded_;
};

class RankBench {
 public:
  RankBench(const LeaderboardPlan& plan, Group& group) : plan_(plan), group_(group) {}

  void run() {
    for (const std::string& implementation : plan_.implementations) {
      tell_progress(implementation);
      begin_unit(implementation, group_);
      measure(implementation);
    }
  }

 private:
  // What the plan recommends within the memory; on every rank the same.
  void choose_recompute(Config& config, Record& record) const {
    PlanInputs inputs;
    inputs.config = config;
    inputs.ranks = group_.world_size();
    if (plan_.c.device == "cuda") {
      const auto memory = at::accelerator::getMemoryInfo(current_device("cuda").index());
      inputs.memory_bytes =
          std::min(1e9 * plan_.memory_gigabytes, static_cast<double>(memory.second));
    }
    std::string card;
    PlanDevice device = plan_device(inputs, card);
    const Plan plan = plan_run(config, inputs.ranks, device);
    require(plan.recommended.has_value(), "[bench leaderboard] expected a level of recomputation ",
            "that fits in ", plan_.memory_gigabytes, " GB, but none does: more ranks need less");
    const PlannedLevel& level = plan.levels[static_cast<size_t>(*plan.recommended)];
    config.train.recompute = level.recompute;
    config.train.recompute_blocks = level.blocks;
    record.facts["planned bytes"] = level.used_bytes;
    if (level.time) record.facts["planned seconds"] = level.time->total_s();
  }

  void measure(const std::string& implementation) {
    Record record{.implementation = implementation};
    Config config = leaderboard_config(plan_.c, implementation);
    if (implementation != "reference") choose_recompute(config, record);
    const std::string some =
        config.train.recompute_blocks > 0 ? str(", first ", config.train.recompute_blocks) : "";
    record.facts["recompute"] = config.train.recompute + some;
    set_up_process(config.train);
    // Listens to the first step alone, which is launched and not timed.
    std::optional<measure::MemoryObserver> observer;
    if (group_.is_first()) observer.emplace(current_device(config.train.device).type());
    Job job(config, group_);
    reset_peak_memory(job.device());
    const Samples samples = job.begin();
    if (observer) put_step_memory(observer->take(), record);
    observer.reset();
    record.facts["loss"] = samples.at("loss").item<double>();
    if (implementation == "reference") {
      std::filesystem::create_directories(plan_.samples);
      write_safetensors(samples_file(), NamedTensors(samples.begin(), samples.end()));
    } else {
      if (std::filesystem::exists(samples_file())) compare(samples, config, record);
      time(job, record);
      trace(job, record);
    }
    record.facts["tensor bytes"] = group_.all_reduce(peak_memory_bytes(job.device()), Reduce::kMax);
    if (job.device().is_cuda())
      record.facts["used bytes"] = group_.all_reduce(used_gpu_bytes(job.device()), Reduce::kMax);
    hand_over_record(record);
  }

  void time(Job& job, Record& record) {
    for (int64_t step = 1; step < plan_.warmup; ++step) job.launch(step);
    synchronize(job.device());
    group_.barrier("beginning timed steps");
    Marks marks(job.device());
    marks.set();
    for (int64_t step = 0; step < plan_.steps; ++step) {
      job.launch(plan_.warmup + step);
      marks.set();
    }
    // The host is ahead: the GPU is in the middle of these steps.
    const auto state =
        job.device().is_cuda() ? measure::gpu_state(job.device().index()) : std::nullopt;
    if (state) record.facts["watts"] = state->power_watts;
    if (state) record.facts["clock"] = state->sm_clock_mhz;
    record.samples["total"] = group_.all_reduce(marks.seconds(), Reduce::kMax);
    record.facts["steps"] = std::string(job.is_recorded() ? "replayed" : "launched");
  }

  // One more step, of the first rank under the profiler, once all ranks are there.
  void trace(Job& job, Record& record) const {
    const auto step = [&] {
      group_.barrier("beginning a traced step");
      job.launch(plan_.warmup + plan_.steps);
      synchronize(job.device());
    };
    if (!group_.is_first()) return step();
    put_step_work(tools::record(job.device(), step), record);
  }

  std::filesystem::path samples_file() const {
    return std::filesystem::path(plan_.samples) / str("rank_", group_.rank(), ".safetensors");
  }

  // Largest over all ranks' samples.
  void compare(const Samples& samples, const Config& config, Record& record) const {
    // A first update moves a weight by the learning rate, whose sign a gradient near 0 may change.
    // bfloat16 weights were rounded to the nearest before, and by chance after it.
    const double moved = 2.2 * config.schedule.learning_rate;
    const double rounded = config.train.weights == "bf16" ? 3.0 / 256 : 1e-6;
    double difference = 0, size = 0, farthest = 0;
    const SafetensorsFile reference(samples_file());
    for (const auto& [name, sample] : samples) {
      const Tensor expected = reference.tensor(name);
      const Tensor apart = (sample - expected).abs();
      if (name.ends_with("/gradient")) {
        difference += apart.square().sum().item<double>();
        size += expected.square().sum().item<double>();
      } else if (name.ends_with("/weight")) {
        const double most = (apart / (moved + rounded * expected.abs())).max().item<double>();
        farthest = std::isnan(most) ? most : std::max(farthest, most);
      } else {
        record.facts["loss error"] = apart.item<double>();
      }
    }
    const std::vector<double> sums =
        group_.all_reduce(std::vector<double>{difference, size}, Reduce::kSum);
    record.facts["gradient error"] = std::sqrt(sums[0] / sums[1]);
    record.facts["weight error"] = group_.all_reduce(farthest, Reduce::kMax);
  }

  const LeaderboardPlan& plan_;
  Group& group_;
};

}  // namespace

void bench_leaderboard_rank(const std::string& task) {
  const auto plan = read_task<LeaderboardPlan>(task);
  const bool on_gpu = plan.c.device == "cuda";
  if (on_gpu) let_memory_grow(at::kCUDA);
  const auto group = make_rank_group(plan.c.backend(), plan.c.device);
  std::optional<GpuStream> stream;
  if (on_gpu) stream.emplace();
  RankBench(plan, *group).run();
}

}  // namespace flashstep::tools
