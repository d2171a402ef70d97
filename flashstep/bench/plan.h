// A run's plan as tables: what it holds on each rank by train.recompute, whether that fits, how
// long a step takes. Nothing is started, measured or written.
#pragma once

#include <cstdint>
#include <string>

#include "flashstep/bench/benchmark.h"
#include "flashstep/train/config.h"
#include "flashstep/train/plan.h"

namespace flashstep::tools {

struct PlanInputs {
  Config config;
  int64_t ranks = 0;        // 0: parallel.world_size, else 1
  std::string card;         // part of a GPU's name, "H200"; empty: what train.device finds here
  double memory_bytes = 0;  // of each rank's GPU, or of the machine; 0: as the card has
};

// UserError for a card that is not known, and as plan_run().
PlanDevice plan_device(const PlanInputs& inputs, std::string& name);
BenchReport plan_report(const PlanInputs& inputs);

// "141GiB", "80 GB", "512MiB": bytes. UserError for what is no such size.
double bytes_of(const std::string& text);

}  // namespace flashstep::tools
