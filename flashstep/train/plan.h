// What a run of a config will hold on each rank, and how long its steps take, before anything
// starts: from the formulas of the rooms' cost.h and a GPU's rates. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashstep/measure/step_rates.h"
#include "flashstep/train/config.h"

namespace flashstep {

struct PlanDevice {
  bool is_gpu = true;
  double memory_bytes = 0;
  std::optional<measure::StepRates> rates = std::nullopt;  // none: no times
};

struct PlannedPart {
  std::string name;
  double bytes = 0;
};

struct PlannedTime {  // of a step
  double products_s = 0, attention_s = 0;
  double memory_s = 0;         // kernels bound by memory, the update and what copies move included
  double launches_s = 0;       // between kernels
  double communication_s = 0;  // exposed
  double total_s() const {
    return products_s + attention_s + memory_s + launches_s + communication_s;
  }
};

enum class Fit {
  kNo,
  kLaunched,  // but not as a CUDA graph beside what the launched steps leave behind
  kYes,
};

// A run with another train.recompute, of all blocks or of the first so many.
struct PlannedLevel {
  std::string recompute;
  int64_t blocks = 0;              // train.recompute_blocks; 0: all
  double kept_bytes = 0;           // by the blocks, for backward
  double tensor_bytes = 0;         // at the peak
  double used_bytes = 0;           // of the device, as nvidia-smi shows it; on a CPU, resident
  std::vector<PlannedPart> parts;  // of used_bytes
  Fit fit = Fit::kNo;
  bool means_stay = false;  // of gradients, where they arrive
  std::optional<PlannedTime> time;
};

struct Plan {
  ModelConfig model;
  double parameters = 0;
  double tokens = 0;      // of a rank, in a step
  double step_flops = 0;  // of a rank, the model's
  // none first, then those that keep less; last, where it is the fastest that fits, one that
  // recomputes some blocks only.
  std::vector<PlannedLevel> levels;
  size_t chosen = 0;  // the config's; none, where its own makes no difference
  // The fastest of those that fit; nothing, if none does.
  std::optional<size_t> recommended;
  const PlannedLevel& level(const std::string& recompute) const;  // UserError if it is not there
};

// Of the config on `ranks` GPUs of one machine (or processes on its CPU, whose memory is then that
// of one). UserError for what such a run would refuse before its first step, for fp16, and for what
// cannot be counted.
Plan plan_run(const Config& config, int64_t ranks, const PlanDevice& device);

}  // namespace flashstep
