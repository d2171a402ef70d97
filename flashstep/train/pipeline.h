// The main job: from a config to a trained Transformer.
#pragma once

#include <filesystem>
#include <string>

#include "flashstep/loop.h"
#include "flashstep/train/config.h"

namespace flashstep {

struct TrainOptions {
  std::filesystem::path run_directory;
  bool resume = false;
  bool skip_data = false;
  bool quiet = false;
};

// Prepares the data, trains, and leaves everything in the run directory. Throws as run() does.
LoopResult train(const Config& config, const TrainOptions& options);

}  // namespace flashstep
