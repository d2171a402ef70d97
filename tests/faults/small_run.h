// A training run in miniature: everything a run keeps on disk, around an update that costs nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace flashstep::testing {

struct SmallRun {
  std::filesystem::path directory;  // gets metrics.jsonl, tensorboard/, checkpoints/
  int64_t steps = 6;
  int64_t save_every = 2;
  int64_t keep = 2;
  int64_t size = 1000;  // floats in the model
};

// Goes on from the newest checkpoint, or starts, and runs to the last step. Throws as the library
// does.
void continue_run(const SmallRun& run);

// What a run leaves that must not depend on how often it was stopped: the metrics, and the bytes of
// the last checkpoint.
std::string outcome(const SmallRun& run);

}  // namespace flashstep::testing
